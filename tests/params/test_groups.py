"""Every rule of every group: the shipped params.yaml with one value changed, and the sentence that refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftyard.errors import ParamError
from draftyard.params.hidden_states import HiddenStatesParams, resolve_aux_layer_ids
from draftyard.params.load import GROUPS, Params, load_file, validate
from draftyard.params.yaml_file import read_yaml

PARAMS = Path(__file__).parents[2] / "params.yaml"


def changed(key: str, value: Any) -> Params:
    group, name = key.split(".")
    values = read_yaml(PARAMS)
    values[group][name] = value
    return validate(values)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("verifier.source", "pickle", "must be one of pypi-gguf, hf, path"),
        ("verifier.name", "  ", "must name the verifier"),
        ("verifier.revision", None, "pypi-gguf needs the package version"),
        ("verifier.revision", 0.1, "must be a text"),
        ("verifier.file", None, "pypi-gguf needs the name of the .gguf file"),
        ("verifier.sha256", None, "pypi-gguf needs the file's SHA-256"),
        ("verifier.sha256", "B" * 64, "pypi-gguf needs the file's SHA-256"),
        ("verifier.trust_remote_code", "false", "must be true or false"),
        ("verifier.engine_args", {"max_num_seqs": 4}, "not an option that changes the verifier's results"),
        ("generate.engine", "openai", "must be one of vllm, endpoint"),
        ("generate.endpoint_model", "verifier", "is used by generate.engine endpoint only"),
        ("generate.max_new_tokens", 1, "must be at least 2"),
        ("generate.holdout_max_new_tokens", 1, "must be at least 2"),
        ("generate.max_model_len", 3, "must exceed the longest answer"),
        ("generate.temperature", 2.1, r"must lie in \[0, 2\]"),
        ("generate.top_p", 0, r"must lie in \(0, 1\]"),
        ("generate.samples_per_prompt", 0, "must be at least 1"),
        ("generate.samples_per_prompt", 2, "needs generate.temperature above 0"),
        ("generate.max_skipped_fraction", 1.5, r"must lie in \[0, 1\]"),
        ("generate.max_looping_fraction", -0.1, r"must lie in \[0, 1\]"),
        ("hidden_states.aux_layer_ids", [2, 15], "exactly 3 aux layers"),
        ("hidden_states.aux_layer_ids", [15, 2, 27], "strictly increasing"),
        ("hidden_states.aux_layer_ids", [2, 2, 27], "strictly increasing"),
        ("hidden_states.aux_layer_ids", [-1, 2, 27], "ids start at 0"),
        ("hidden_states.aux_layer_ids", [1.0, 2, 27], "must be a whole number"),
        ("hidden_states.dtype", "float64", "must be one of bfloat16, float16, float32"),
        ("hidden_states.shard_mib", 0, "must be at least 1"),
        ("hidden_states.canary_samples", 0, "must be at least 1"),
        ("hidden_states.canary_min_agreement", 0, r"must lie in \(0, 1\]"),
        ("hidden_states.canary_max_difference", 0, "must be positive"),
        ("hidden_states.canary_reference_max_parameters", -1, "must not be negative"),
        ("hidden_states.dtype", "float8", "must be one of bfloat16, float16, float32, float8_e4m3"),
        ("hidden_states.storage", "s3", "must be one of outs, store"),
        ("hidden_states.max_skipped_fraction", 1.5, r"must lie in \[0, 1\]"),
        ("draft.vocab_size", 0, "must be positive"),
        ("draft.num_hidden_layers", 0, "must be positive"),
        ("draft.num_hidden_layers", None, "must be a whole number"),
        ("draft.head_dim", 65, "must be even: RoPE turns pairs"),
        ("draft.rope_theta", -1, "must be positive"),
        ("draft.rms_norm_eps", 0, "must be positive"),
        ("draft.dtype", "int8", "must be one of"),
        ("train.epochs", 0, "must be at least 1"),
        ("train.batch_tokens", 0, "must be at least 1"),
        ("train.ttt_steps", 0, "must be at least 1"),
        ("train.max_sample_tokens", 7, "must be at least 8"),
        ("train.optimizer", "sgd", "must be one of adamw, muon"),
        ("train.learning_rate", 0, r"must lie in \(0, 1\)"),
        ("train.learning_rate", "2e-05", "must be a number"),
        ("train.min_learning_rate_ratio", 1.1, r"must lie in \[0, 1\]"),
        ("train.warmup_steps", -1, "must not be negative"),
        ("train.weight_decay", -0.1, "must not be negative"),
        ("train.initial_weight_decay", -1.0, "must not be negative"),
        ("train.adam_beta1", 1, r"must lie in \[0, 1\)"),
        ("train.adam_beta2", -0.1, r"must lie in \[0, 1\)"),
        ("train.max_grad_norm", 0, "must be positive"),
        ("train.ttt_decay", 0, r"must lie in \(0, 1\]"),
        ("train.prompt_loss_weight", 1.5, r"must lie in \[0, 1\]"),
        ("train.max_skipped_fraction", -1, r"must lie in \[0, 1\]"),
        ("verify.num_speculative_tokens", 17, r"must lie in 1\.\.16"),
        ("verify.simulate_up_to", 0, "must be at least verify.num_speculative_tokens="),
        ("verify.simulate_up_to", 17, "must be at most 16"),
        ("verify.served_prompts", 0, "must be at least 1, or null for all"),
        ("verify.speed_prompts", 0, "must be at least 1"),
        ("verify.speed_repeats", 0, "must be at least 1"),
        ("verify.reference", "../elsewhere.json", "must lie below data/references/, or be null"),
        ("verify.reference", "data/references", "must lie below data/references/"),
        ("verify.reference", "data/references/../x.json", "must lie below data/references/"),
        ("report.title", " ", "must not be empty"),
        ("report.uncovered_tokens", -1, "must not be negative"),
        ("report.baseline", "main", "a branch or tag can move.*git rev-parse main"),
        ("report.baseline", "036b4a5", "full commit hash"),
        ("report.baseline", "--output=x", "full commit hash"),
        ("report.baseline", "data/baselines/../metrics.json", "full commit hash.*below data/baselines/"),
        ("gate.min_acceptance_length", 0.9, "must be at least 1"),
        ("gate.max_simulation_gap", 2, r"must lie in \[0, 1\]"),
        ("gate.require_serving", None, "must be true or false"),
    ],
)
def test_the_rule_is_told_with_its_key(key: str, value: Any, rule: str) -> None:
    with pytest.raises(ParamError, match=rule) as caught:
        changed(key, value)
    assert caught.value.key.startswith(key)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"source": "hf", "file": None, "sha256": None, "revision": "main"}, "full commit hash"),
        ({"source": "hf", "file": None, "sha256": None, "revision": None}, "full commit hash"),
        ({"source": "hf", "sha256": None}, "verifier.file=.*used by pypi-gguf only"),
        ({"source": "path", "file": None}, "verifier.sha256=.*used by pypi-gguf only"),
    ],
)
def test_rules_by_source(changes: dict[str, Any], rule: str) -> None:
    values = read_yaml(PARAMS)
    values["verifier"].update(changes)
    with pytest.raises(ParamError, match=rule):
        validate(values)


@pytest.mark.parametrize("name", [None, "", "  "])
def test_an_endpoint_needs_the_name_of_its_model(name: str | None) -> None:
    values = read_yaml(PARAMS)
    values["generate"].update({"engine": "endpoint", "endpoint_model": name})
    with pytest.raises(ParamError, match="generate.endpoint_model.*must name the served model"):
        validate(values)
    values["generate"]["endpoint_model"] = "verifier"
    assert validate(values).generate.endpoint_model == "verifier"


def test_a_path_needs_no_revision() -> None:
    values = read_yaml(PARAMS)
    values["verifier"].update({"source": "path", "name": "verifier", "file": None, "sha256": None, "revision": None})
    assert validate(values).verifier.revision is None


def hidden_states(ids: list[int] | None) -> HiddenStatesParams:
    return changed("hidden_states.aux_layer_ids", ids).hidden_states


@pytest.mark.parametrize(("layers", "expected"), [(30, (2, 15, 27)), (61, (2, 30, 58)), (8, (2, 4, 5)), (7, (2, 3, 4))])
def test_default_aux_layers_are_eagle3s_plus_one(layers: int, expected: tuple[int, ...]) -> None:
    # EAGLE-3's own numbering, "output of layer i counted from 0": [1, n/2 - 1, n - 4]; vLLM counts the embedding output as 0.
    assert resolve_aux_layer_ids(None, layers) == expected == tuple(i + 1 for i in (1, layers // 2 - 1, layers - 4))


@pytest.mark.parametrize("layers", range(1, 64))
def test_default_aux_layers_are_three_different_ones_or_refused(layers: int) -> None:
    try:
        ids = resolve_aux_layer_ids(None, layers)
    except ParamError as error:
        assert "too shallow" in str(error)
        assert layers < 7
    else:
        assert hidden_states(list(ids)).aux_layer_ids == ids


def test_aux_layers_beyond_the_last_are_refused() -> None:
    assert resolve_aux_layer_ids((0, 1, 30), 30) == (0, 1, 30)
    with pytest.raises(ParamError, match=r"the verifier has 30 layers: ids lie in 0\.\.30"):
        resolve_aux_layer_ids((0, 1, 31), 30)


# --- the whole file -------------------------------------------------------------------------------------------------


def test_the_shipped_file_is_valid_and_complete() -> None:
    params = load_file(PARAMS)
    assert list(read_yaml(PARAMS)) == list(GROUPS)
    assert params.hidden_states.aux_layer_ids is None


def test_overrides_change_one_key_in_yaml() -> None:
    params = load_file(PARAMS, ("draft.head_dim=null", "train.learning_rate=2e-05", "hidden_states.aux_layer_ids=[1, 2, 3]", "report.title=no"))
    assert params.draft.head_dim is None
    assert params.train.learning_rate == 2e-05
    assert params.hidden_states.aux_layer_ids == (1, 2, 3)
    assert params.report.title == "no"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("draft.head_dims=64", r"draft.head_dims='64': override names no key of .*params.yaml; write group.key=value \(is draft.head_dim meant\?\)"),
        ("drafts.head_dim=64", "override names no key"),
        ("draft.head_dim", "override names no key"),
        ("prompts.sources.0.path=x", "override names no key"),
        ("draft.head_dim.x=1", "override names no key"),
        ("draft.head_dim=[", r"override 'draft.head_dim=\[': is not valid YAML"),
        ("draft.head_dim=63", "draft.head_dim=63: must be even"),
        ("draft=3", "draft=3: must be a mapping"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        load_file(PARAMS, (override,))


def test_unknown_and_missing_groups() -> None:
    values = read_yaml(PARAMS)
    with pytest.raises(ParamError, match=r"^trian=1: unknown group; known groups: verifier, prompts"):
        validate({**values, "trian": 1})
    with pytest.raises(ParamError, match="^gate: missing group$"):
        validate({group: value for group, value in values.items() if group != "gate"})
