"""Real families of verifiers at miniature size, through the stages of a build: what one family does differently is right from the card to the served draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from draftyard.artifacts.card import read_card
from draftyard.artifacts.generations import read_split
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.artifacts.lineage import read_lineage
from draftyard.engines.canary import load_reference
from draftyard.verifier_weights import load_embeddings, load_layer
from tests.families.build import PROMPTS, build_family
from tests.families.verifiers import FAMILIES, LONG_ROPE, Family

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a family -> its repository after the stages, built when it is first asked for. A build that fails is not tried again."""
    area = tmp_path_factory.mktemp("families")
    failures: dict[str, Exception] = {}

    @cache
    def built(name: str) -> Path:
        if name in failures:
            pytest.fail(f"{name} could not be built: {failures[name]}", pytrace=False)
        try:
            build_family(area / name, name)
        except Exception as error:
            failures[name] = error
            raise
        return area / name

    return built


@pytest.fixture(params=list(FAMILIES.values()), ids=list(FAMILIES))
def built(request: pytest.FixtureRequest, builds: Callable[[str], Path]) -> tuple[Family, Path]:
    return request.param, builds(request.param.name)


def load(root: Path, name: str) -> Any:
    return json.loads((root / "reports" / name).read_text(encoding="utf-8"))


def reference_states(model: Any, token_ids: torch.Tensor, layer_ids: tuple[int, ...]) -> dict[int, torch.Tensor]:
    """What each layer's output is, by hooks on the layers themselves: id -> (T, H). Before the final norm, where transformers' own list is after it."""
    decoder = model.get_decoder()
    found: dict[int, torch.Tensor] = {}

    def keep(number: int) -> Any:
        return lambda module, inputs, output: found.update({number: (output[0] if isinstance(output, tuple) else output)[0]})

    hooks = [decoder.embed_tokens.register_forward_hook(keep(0))]
    hooks += [layer.register_forward_hook(keep(number)) for number, layer in enumerate(decoder.layers, start=1)]
    with torch.inference_mode():
        model(token_ids[None])
    for hook in hooks:
        hook.remove()
    return {number: found[number] for number in layer_ids}


def test_states_equal_a_float32_forward_at_the_aux_layers_and_the_last(built: tuple[Family, Path]) -> None:
    family, root = built
    model = load_reference(root / "verifier", False, family.engine_args.get("hf_overrides", {}))
    data = HiddenStates(root / "data/hidden_states")
    assert tuple(data.aux_layer_ids) == family.aux_layer_ids
    refs = [*data.refs("train")[:3], *data.refs("holdout")[:2]]
    assert len(refs) == 5
    for ref in refs:
        sample = data.load(ref)
        expected = reference_states(model, sample.token_ids, (*family.aux_layer_ids, 7))
        captured = dict(zip(family.aux_layer_ids, sample.aux.chunk(3, dim=-1), strict=True)) | {7: sample.last}
        for number, states in captured.items():
            difference = float((states - expected[number]).norm() / expected[number].norm())
            assert difference < family.tolerance, (ref.id, number)


def test_the_canary_passes_and_says_how(built: tuple[Family, Path]) -> None:
    family, root = built
    canary = load(root, "stages/hidden_states.json")["canary"]
    assert canary["agreement"] == 1.0
    assert canary["positions"] > 10
    assert canary["reference_max_difference"] < family.tolerance


def test_the_card_counts_the_decoder_as_the_config_implies(built: tuple[Family, Path]) -> None:
    family, root = built
    card = read_card(root / "models/verifier.json")
    model = load_reference(root / "verifier", False, {})
    assert card.num_parameters == sum(p.numel() for p in model.parameters()) + sum(
        b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")
    )
    assert card.geometry.num_hidden_layers == 7
    assert card.geometry.tie_word_embeddings is (family.name == "llama")
    assert card.engine_args == {"dtype": "float32", **family.engine_args}


def test_training_runs_and_the_static_checks_pass(built: tuple[Family, Path]) -> None:
    _, root = built
    trained = load(root, "stages/train.json")
    assert trained["samples"] >= len(PROMPTS) // 2
    static = load(root, "verify/static.json")
    assert static["status"] == "pass", [check for check in static["checks"] if check["status"] == "fail"]
    assert {check["id"] for check in static["checks"] if check["status"] == "skipped"} == set()


def test_the_simulation_runs_over_every_holdout_prompt(built: tuple[Family, Path]) -> None:
    _, root = built
    simulation = load(root, "verify/simulation.json")
    assert simulation["prompts"] == len(list(read_split(root / "data/generations", "holdout"))) == 3
    assert simulation["rounds"] > 0


def test_serving_is_measured_where_it_can_be_and_skipped_with_a_reason_elsewhere(built: tuple[Family, Path]) -> None:
    family, root = built
    serving = load(root, "verify/serving.json")
    if not family.serves:
        assert serving["status"] == "skipped"
        assert "block size" in serving["reason"]
        assert "overall" not in serving
        return
    assert serving["status"] == "measured"
    assert serving["overall"]["rounds"] > 0
    assert serving["equality"] == {"prompts": 3, "equal": 3, "divergences": []}
    simulation = load(root, "verify/simulation.json")
    assert serving["overall"]["acceptance_length"] == pytest.approx(simulation["acceptance_length"], rel=0.02)


def test_a_multimodal_verifier_gives_its_language_models_tensors(builds: Callable[[str], Path]) -> None:
    directory = builds("kimi_k25") / "verifier"
    model = load_reference(directory, False, {})
    decoder = model.get_decoder()
    assert torch.equal(load_layer(directory, 0)["gate_proj"], decoder.layers[0].mlp.gate_proj.weight)
    assert torch.equal(load_embeddings(directory)["norm"], decoder.norm.weight)
    assert torch.equal(load_embeddings(directory)["lm_head"], model.lm_head.weight)


def test_options_of_the_verifier_reach_the_card_and_every_engine(builds: Callable[[str], Path]) -> None:
    root = builds("qwen3")
    card = read_card(root / "models/verifier.json")
    assert card.engine_args["hf_overrides"] == LONG_ROPE
    assert (card.geometry.rope_theta, card.geometry.max_position_embeddings) == (500.0, 2048)
    for directory in ("data/generations", "data/hidden_states", "models/draft"):
        assert read_lineage(root / directory, {"data/generations": "generations", "data/hidden_states": "hidden_states"}.get(directory, "draft")).inputs[
            "verifier"
        ] == (card.digest)
    data = HiddenStates(root / "data/hidden_states")
    ref = data.refs("holdout")[0]
    sample = data.load(ref)
    without = reference_states(load_reference(root / "verifier", False, {}), sample.token_ids, (4,))[4]
    with_options = reference_states(load_reference(root / "verifier", False, LONG_ROPE), sample.token_ids, (4,))[4]
    states = sample.aux.chunk(3, dim=-1)[2]
    assert (states - with_options).norm() / with_options.norm() < 1e-3  # hidden_states
    assert (states - without).norm() / without.norm() > 0.01
    # generate: every greedy answer is the argmax under the options (the canary), and not without them. verify: served equals simulated on those answers.
    model = load_reference(root / "verifier", False, {})
    answers = list(read_split(root / "data/generations", "holdout"))
    agreement = []
    for answer in answers:
        with torch.inference_mode():
            guesses = model(torch.tensor([answer.token_ids])).logits[0].argmax(-1).tolist()
        agreement += [guesses[i - 1] == answer.token_ids[i] for start, end in answer.loss_spans for i in range(start, end)]
    assert not all(agreement)
    served, simulated = load(root, "verify/serving.json"), load(root, "verify/simulation.json")
    assert served["overall"]["rounds"] == simulated["rounds"]
