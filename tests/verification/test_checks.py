"""One thing broken at a time in a small real checkpoint; then the id, the status and the sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftyard.verification.check_report import CheckReport, render
from draftyard.verification.checks import check_checkpoint
from tests.verification.checkpoints import DRAFT_VOCAB, HIDDEN, REFERENCE, TOKENS, VOCAB, Config, Tensors, build_draft, read, variant, write, write_kimi_headers

QKV = "layers.0.self_attn."
Change = Callable[[Tensors, Config], None]


def statuses(report: CheckReport) -> dict[str, str]:
    return {check.id: check.status for check in report.checks}


def problems(report: CheckReport) -> dict[str, str]:
    return {check.id: check.status for check in report.checks if check.status in ("fail", "warn")}


def layer(config: Config) -> Config:
    nested = config["transformer_layer_config"]
    assert isinstance(nested, dict)
    return nested


# --- what must pass -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["draft_dir", "midlayer_dir"])
def test_correct_checkpoint_passes_without_warning(name: str, verifier_dir: Path, request: pytest.FixtureRequest) -> None:
    report = check_checkpoint(request.getfixturevalue(name), verifier_dir=verifier_dir)
    assert report.exit_code == 0
    assert set(statuses(report).values()) == {"pass"}, problems(report)
    assert report.layout == {"draft_dir": "speculators", "midlayer_dir": "midlayer"}[name]


def test_without_a_verifier_its_checks_are_skipped(draft_dir: Path) -> None:
    report = check_checkpoint(draft_dir)
    skipped = {check.id for check in report.checks if check.status == "skipped"}
    assert skipped == {"verifier.hidden", "verifier.vocabulary", "verifier.positions", "verifier.embed_tokens", "verifier.lm_head", "vocabulary.end_tokens"}
    assert report.exit_code == 0
    assert f"trainable if lm_head ({DRAFT_VOCAB * HIDDEN:,}) was frozen: --verifier tells" in render(report, colour=False)


def test_what_was_trained_is_known_once_lm_head_was_compared(draft_dir: Path, verifier_dir: Path) -> None:
    assert "was frozen: --verifier tells" not in render(check_checkpoint(draft_dir, verifier_dir=verifier_dir), colour=False)


def test_verifier_config_alone_checks_sizes(draft_dir: Path, verifier_dir: Path) -> None:
    found = statuses(check_checkpoint(draft_dir, verifier_config=verifier_dir / "config.json"))
    assert found["verifier.hidden"] == found["verifier.vocabulary"] == found["vocabulary.end_tokens"] == "pass"
    assert found["verifier.lm_head"] == "skipped"


@pytest.mark.parametrize(
    "options",
    [
        {"qwen3": True},
        {"layers": 2},
        {"attention_bias": True},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_output": True, "norm_before_residual": True},
        {"full": True},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
    ],
    ids=str,
)
def test_unusual_but_legal(options: dict[str, Any], tmp_path: Path, verifier_dir: Path) -> None:
    report = check_checkpoint(build_draft(tmp_path / "draft", verifier_dir, **options), verifier_dir=verifier_dir)
    assert problems(report) == {}


def test_full_vocabulary_with_zero_offsets_passes(tmp_path: Path, verifier_dir: Path) -> None:
    def add_maps(tensors: Tensors, config: Config) -> None:
        tensors["d2t"], tensors["t2d"] = np.zeros(VOCAB, np.int64), np.ones(VOCAB, bool)

    base = build_draft(tmp_path / "full", verifier_dir, full=True)
    assert problems(check_checkpoint(variant(tmp_path / "zero", base, add_maps), verifier_dir=verifier_dir)) == {}


def test_draft_of_another_width_passes_with_its_own_embeddings(tmp_path: Path, verifier_dir: Path) -> None:
    def narrower(tensors: Tensors, config: Config) -> None:  # as the public Llama-3.3-70B draft: hidden 6144 against 8192
        config["target_hidden_size"] = HIDDEN
        tensors["fc.weight"] = np.random.default_rng(0).standard_normal((24, 3 * HIDDEN)).astype(np.float32)

    path = variant(tmp_path / "narrow", build_draft(tmp_path / "base", verifier_dir, hidden_size=24), narrower)
    report = check_checkpoint(path, verifier_dir=verifier_dir)
    assert report.exit_code == 0
    assert "24 wide, with its own embeddings" in report.by_id("verifier.hidden").detail
    variant(tmp_path / "cut", path, lambda tensors, config: tensors.pop("embed_tokens.weight"))  # type: ignore[arg-type]
    assert problems(check_checkpoint(tmp_path / "cut", verifier_dir=verifier_dir)) == {"verifier.hidden": "fail"}


def test_trained_lm_head_is_recognised(tmp_path: Path, draft_dir: Path, verifier_dir: Path) -> None:
    def train(tensors: Tensors, config: Config) -> None:
        tensors["lm_head.weight"] += 0.2 * tensors["lm_head.weight"].std() * np.random.default_rng(0).standard_normal((DRAFT_VOCAB, HIDDEN)).astype(np.float32)

    report = check_checkpoint(variant(tmp_path / "d", draft_dir, train), verifier_dir=verifier_dir)
    assert problems(report) == {}
    assert report.by_id("verifier.lm_head").detail.startswith("trained: 48 of 48 rows")
    frozen = check_checkpoint(draft_dir, verifier_dir=verifier_dir)
    assert report.parameters is not None
    assert frozen.parameters is not None
    assert report.parameters.trainable - frozen.parameters.trainable == DRAFT_VOCAB * HIDDEN


def test_unknown_family_is_named_and_never_failed(tmp_path: Path, draft_dir: Path, verifier_dir: Path) -> None:
    def to_mla(tensors: Tensors, config: Config) -> None:
        for name in list(tensors):
            if name.startswith(QKV):
                del tensors[name]
        rng = np.random.default_rng(0)
        for name, shape in {"q_proj": (40, 64), "kv_a_proj_with_mqa": (20, 64), "kv_b_proj": (40, 16), "o_proj": (32, 24)}.items():
            tensors[f"{QKV}{name}.weight"] = rng.standard_normal(shape).astype(np.float32)
        layer(config).update(model_type="deepseek_v3", kv_lora_rank=16)

    report = check_checkpoint(variant(tmp_path / "mla", draft_dir, to_mla), verifier_dir=verifier_dir)
    assert problems(report) == {"family": "warn"}
    assert "family mla" in report.by_id("family").detail
    assert report.by_id("verifier.lm_head").status == "pass"


def test_public_kimi_reference_by_its_headers(tmp_path: Path) -> None:
    """The public draft's config and tensor table, with the data left as a hole in a sparse file: header first, nothing is allocated."""
    write_kimi_headers(tmp_path)
    report = check_checkpoint(tmp_path, reference=REFERENCE, values=False)
    assert problems(report) == {}
    assert report.parameters is not None
    assert (report.parameters.saved, report.parameters.total) == (1_190_948_864, 2_594_737_152)
    assert "64 heads x head_dim 128 is not hidden_size 7168" in report.by_id("shapes").detail


# --- what must be caught --------------------------------------------------------------------------------------------


def set_tensor(name: str, value: Any) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        tensors[name] = np.asarray(value(tensors[name]))

    return change


def drop(name: str) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        del tensors[name]

    return change


def set_config(key: str, value: Any) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        config[key] = value

    return change


def set_layer(key: str, value: Any) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        layer(config)[key] = value

    return change


def rename(old: str, new: str) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        tensors[new] = tensors.pop(old)

    return change


def add(name: str, value: Any) -> Change:
    def change(tensors: Tensors, config: Config) -> None:
        tensors[name] = value

    return change


def both_layouts(tensors: Tensors, config: Config) -> None:
    tensors["midlayer.hidden_norm.weight"] = tensors["layers.0.hidden_norm.weight"].copy()


def head_dim_of_hidden_over_heads(tensors: Tensors, config: Config) -> None:
    rng = np.random.default_rng(0)
    for name, shape in {"q_proj": (32, 64), "k_proj": (16, 64), "v_proj": (16, 64), "o_proj": (32, 32)}.items():
        tensors[f"{QKV}{name}.weight"] = rng.standard_normal(shape).astype(np.float32)


def ids_for_offsets(tensors: Tensors, config: Config) -> None:
    tensors["d2t"] = TOKENS.copy()


def repeated_token(tensors: Tensors, config: Config) -> None:
    targets = TOKENS.copy()
    targets[10] = targets[9]
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)


def swapped_tokens(tensors: Tensors, config: Config) -> None:
    targets = TOKENS.copy()
    targets[[9, 10]] = targets[[10, 9]]
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)


def beyond_vocabulary(tensors: Tensors, config: Config) -> None:
    tensors["d2t"][-1] = VOCAB


def without_eos(tensors: Tensors, config: Config) -> None:
    targets = np.array([0, 1, *range(4, 96, 2)], dtype=np.int64)
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)
    tensors["t2d"] = np.isin(np.arange(VOCAB), targets)


def permuted_rows(tensors: Tensors, config: Config) -> None:
    tensors["lm_head.weight"] = np.roll(tensors["lm_head.weight"], 1, axis=0)


def two_rows_swapped(tensors: Tensors, config: Config) -> None:
    tensors["lm_head.weight"][[3, 4]] = tensors["lm_head.weight"][[4, 3]]


def rederived_map(tensors: Tensors, config: Config) -> None:
    """A warm start that derives the map again: trained rows stay, their tokens change."""
    tensors["lm_head.weight"] += 0.1 * tensors["lm_head.weight"].std() * np.random.default_rng(0).standard_normal((DRAFT_VOCAB, HIDDEN)).astype(np.float32)
    targets = np.sort(np.array([0, 1, 2, *range(3, 93, 2)], dtype=np.int64))
    tensors["d2t"] = targets - np.arange(DRAFT_VOCAB)
    tensors["t2d"] = np.isin(np.arange(VOCAB), targets)


def random_like(array: Any) -> Any:
    return np.random.default_rng(0).standard_normal(array.shape).astype(array.dtype)


def one_nan(array: Any) -> Any:
    array.flat[array.size // 2] = np.nan
    return array


def one_infinity(array: Any) -> Any:
    array.flat[-1] = np.inf
    return array


BROKEN: list[tuple[str, Change, str, str, str]] = [
    # label, what is broken, id, status, part of the sentence
    ("names of no layout", rename("layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight.bak"), "tensors.missing", "fail", "layers.0.hidden_norm.weight"),
    ("missing lm_head", drop("lm_head.weight"), "tensors.missing", "fail", "lm_head.weight"),
    ("unexpected tensor", add("layers.1.mlp.up_proj.weight", np.ones((2, 2), np.float32)), "tensors.unexpected", "fail", "layers.1.mlp.up_proj.weight"),
    ("both layouts", both_layouts, "tensors.duplicate", "fail", "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight"),
    (
        "head_dim",
        head_dim_of_hidden_over_heads,
        "shapes",
        "fail",
        "32 over 4 heads fit head_dim 8, which is hidden_size / num_attention_heads (32 / 4) and not the config's head_dim 12",
    ),
    ("head_dim in the config", set_layer("head_dim", 8), "shapes", "fail", "48 over 4 heads fit head_dim 12, not the config's head_dim 8"),
    ("intermediate size", set_layer("intermediate_size", 64), "shapes", "fail", "intermediate_size"),
    ("KV heads", set_layer("num_key_value_heads", 4), "shapes", "fail", "num_key_value_heads x head_dim"),
    ("heads do not divide", set_layer("num_key_value_heads", 3), "config.sizes", "fail", "num_attention_heads=4 is not divisible by num_key_value_heads=3"),
    ("stale map of another size", set_config("draft_vocab_size", 40), "d2t", "fail", "d2t has shape [48], the config asks for [40]"),
    ("half-precision mix", set_tensor("norm.weight", lambda t: t.astype(np.float16)), "dtypes", "warn", "weights of several dtypes"),
    ("float d2t", set_tensor("d2t", lambda t: t.astype(np.float32)), "dtypes", "fail", "d2t is F32, expected I64"),
    ("config dtype", set_config("dtype", "bfloat16"), "dtypes", "warn", "the config says bfloat16, the weights are F32"),
    ("fc of four layers", set_tensor("fc.weight", lambda t: np.concatenate([t, t[:, :HIDDEN]], axis=1)), "fc.width", "fail", "128 columns fit 4 aux layers"),
    ("fc of another verifier", set_tensor("fc.weight", lambda t: t[:, :60]), "fc.width", "fail", "60 columns fit a verifier of hidden size 20"),
    ("ids missing", set_config("eagle_aux_hidden_state_layer_ids", None), "aux_layers", "warn", "names no aux layer ids"),
    ("ids unsorted", set_config("eagle_aux_hidden_state_layer_ids", [4, 2, 5]), "aux_layers", "fail", "[4, 2, 5] is not strictly increasing"),
    ("ids repeated", set_config("eagle_aux_hidden_state_layer_ids", [2, 2, 5]), "aux_layers", "fail", "not strictly increasing"),
    ("ids out of range", set_config("eagle_aux_hidden_state_layer_ids", [2, 4, 9]), "aux_layers", "fail", "beyond the verifier's 8 layers"),
    ("ids no list", set_config("eagle_aux_hidden_state_layer_ids", "2,4,5"), "aux_layers", "fail", "is no list of layer ids"),
    ("ids in two places", set_config("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}), "aux_layers", "fail", "contradicts itself"),
    ("ids off by one", set_config("eagle_aux_hidden_state_layer_ids", [1, 3, 4]), "aux_layers.convention", "warn", "would write [2, 4, 5]"),
    ("d2t missing", drop("d2t"), "d2t", "fail", "d2t is missing, although the draft vocabulary (48) is smaller"),
    ("d2t holds ids", ids_for_offsets, "d2t", "fail", "d2t holds token ids, not offsets"),
    ("d2t all zero", set_tensor("d2t", np.zeros_like), "d2t", "fail", "the first 48 token ids"),
    ("d2t repeats", repeated_token, "d2t", "fail", "1 tokens occur twice"),
    ("d2t out of order", swapped_tokens, "d2t", "fail", "is not strictly increasing"),
    ("d2t out of range", beyond_vocabulary, "d2t", "fail", "1 entries leave the vocabulary of 96"),
    ("t2d disagrees", set_tensor("t2d", lambda t: np.roll(t, 1)), "t2d", "fail", "disagrees with d2t on"),
    ("t2d of another vocabulary", set_tensor("t2d", lambda t: t[:-1]), "t2d", "fail", "t2d has shape [95]"),
    ("EOS outside", without_eos, "vocabulary.end_tokens", "fail", "no end-of-text token (2 </s>) is in the draft vocabulary"),
    ("NaN", set_tensor("fc.weight", one_nan), "values.finite", "fail", "NaN or infinity in fc.weight"),
    ("infinity", set_tensor("lm_head.weight", one_infinity), "values.finite", "fail", "NaN or infinity in lm_head.weight"),
    ("zero matrix", set_tensor(f"{QKV}o_proj.weight", np.zeros_like), "values.constant", "fail", "o_proj.weight is all zero"),
    ("constant matrix", set_tensor("fc.weight", lambda t: np.full_like(t, 0.5)), "values.constant", "fail", "fc.weight is one value throughout"),
    ("silent norm", set_tensor("norm.weight", lambda t: t * 1e-7), "values.norms", "fail", "norm.weight is at most"),
    ("random norm", set_tensor("norm.weight", random_like), "values.norms", "warn", "negative, as of random numbers"),
    ("huge norm", set_tensor("norm.weight", lambda t: t * 1e5), "values.norms", "warn", "norm.weight reaches"),
    (
        "input_norm without flag",
        add("input_norm.weight", np.linspace(0.5, 1.5, 96, dtype=np.float32)),
        "config.norm_flags",
        "fail",
        "norm_before_fc is not true",
    ),
    ("flag without input_norm", set_config("norm_before_fc", True), "config.norm_flags", "fail", "norm_before_fc is true, but input_norm.weight is missing"),
    ("rope scaling", set_layer("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}), "config.engine", "warn", "rope scaling yarn"),
    ("sliding window", set_layer("layer_types", ["sliding_attention"]), "config.engine", "warn", "sliding window"),
    ("window that is ignored", set_layer("sliding_window", 2048), "config.engine", "warn", "sliding_window=2048 without layer_types: vLLM ignores it"),
    ("another verifier's width", set_config("target_hidden_size", 64), "verifier.hidden", "fail", "the verifier has hidden_size 32"),
    ("another verifier's vocabulary", set_layer("vocab_size", 128), "verifier.vocabulary", "fail", "vocab_size 128 in the draft, 96 in the verifier"),
    ("short positions", set_layer("max_position_embeddings", 64), "verifier.positions", "warn", "max_position_embeddings 64, the verifier serves 512"),
    ("random embeddings", set_tensor("embed_tokens.weight", random_like), "verifier.embed_tokens", "fail", "are not the verifier's"),
    ("touched embeddings", set_tensor("embed_tokens.weight", lambda t: t + 1e-4), "verifier.embed_tokens", "warn", "differ slightly from the verifier's"),
    ("permuted lm_head", permuted_rows, "verifier.lm_head", "fail", "rows do not belong to their tokens: row "),
    ("two rows swapped", two_rows_swapped, "verifier.lm_head", "fail", "2 of the 2 least similar rows"),
    ("map derived again", rederived_map, "verifier.lm_head", "fail", "rows do not belong to their tokens"),
    ("unrelated lm_head", set_tensor("lm_head.weight", random_like), "verifier.lm_head", "warn", "trained from scratch, or random"),
]


@pytest.mark.parametrize(("change", "check_id", "status", "sentence"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken(change: Change, check_id: str, status: str, sentence: str, tmp_path: Path, draft_dir: Path, verifier_dir: Path) -> None:
    report = check_checkpoint(variant(tmp_path / "d", draft_dir, change), verifier_dir=verifier_dir)
    check = report.by_id(check_id)
    assert check.status == status, problems(report)
    assert sentence in check.detail
    assert check.hint, "every failure says what it means and how to mend it"
    assert report.exit_code == (1 if "fail" in statuses(report).values() else 0)


def test_four_aux_layers_do_not_load_in_vllm(tmp_path: Path, verifier_dir: Path) -> None:
    base = build_draft(tmp_path / "four", verifier_dir, ids=[1, 2, 4, 6])
    check = check_checkpoint(base).by_id("fc.width")
    assert check.status == "fail"
    assert "4 aux layers, but vLLM 0.32 builds fc for 3" in check.detail


def test_no_layout(tmp_path: Path, draft_dir: Path) -> None:
    def rename_all(tensors: Tensors, config: Config) -> None:
        for name in list(tensors):
            tensors["model." + name] = tensors.pop(name)

    report = check_checkpoint(variant(tmp_path / "d", draft_dir, rename_all))
    assert report.by_id("layout").status == "fail"
    assert report.layout is None


def test_special_token_of_the_template_outside_warns(tmp_path: Path, draft_dir: Path, verifier_dir: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
        (tmp_path / name).symlink_to(verifier_dir / name)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": "<|im_end|>"}))
    check = check_checkpoint(draft_dir, verifier_dir=tmp_path).by_id("vocabulary.end_tokens")
    assert check.status == "warn"
    assert "95 <|im_end|>" in check.detail


def test_tied_verifier_compares_lm_head_with_its_embeddings(tmp_path: Path, draft_dir: Path, verifier_dir: Path) -> None:
    theirs, config = read(verifier_dir)
    tied = {name: tensor for name, tensor in theirs.items() if name != "lm_head.weight"} | {"model.embed_tokens.weight": theirs["lm_head.weight"]}
    write(tmp_path / "v", tied, json.loads(config))
    assert check_checkpoint(draft_dir, verifier_dir=tmp_path / "v").by_id("verifier.lm_head").detail.startswith("frozen")


# --- reference ------------------------------------------------------------------------------------------------------


def test_reference_bridges_layouts(draft_dir: Path, midlayer_dir: Path) -> None:
    check = check_checkpoint(draft_dir, reference=midlayer_dir).by_id("reference")
    assert check.status == "pass"
    assert "embed_tokens.weight only here" in check.detail


def test_reference_lists_every_difference(tmp_path: Path, draft_dir: Path) -> None:
    table = {name: ["F32", list(tensor.shape)] for name, tensor in read(draft_dir)[0].items()}
    table["d2t"], table["t2d"] = ["I64", [48]], ["BOOL", [96]]
    table[f"{QKV}q_proj.weight"] = ["F32", [32, 64]]
    table["fc.weight"] = ["BF16", [32, 96]]
    table["input_norm.weight"] = ["F32", [96]]
    del table["norm.weight"]
    (tmp_path / "table.json").write_text(json.dumps(table))
    check = check_checkpoint(draft_dir, reference=tmp_path / "table.json").by_id("reference")
    assert check.status == "fail"
    assert "4 differences" in check.detail
    for part in (
        "q_proj.weight: F32 [48, 64] here, F32 [32, 64] there",
        "fc.weight: F32 [32, 96] here, BF16",
        "input_norm.weight: only in the reference",
        "norm.weight: only here",
    ):
        assert part in check.detail


# --- report ---------------------------------------------------------------------------------------------------------


def test_json_has_the_promised_keys(draft_dir: Path) -> None:
    values = check_checkpoint(draft_dir).to_json()
    assert set(values) == {"status", "layout", "parameters", "checks"}
    assert set(values["parameters"]) == {"saved", "total", "trainable"}
    assert all(set(check) == {"id", "status", "detail", "hint"} for check in values["checks"])
    assert json.loads(json.dumps(values)) == values


def test_screen_starts_with_the_verdict_and_fits(tmp_path: Path, draft_dir: Path) -> None:
    good = render(check_checkpoint(draft_dir), colour=False)
    assert good.startswith("PASS ")
    assert len(good.splitlines()) < 40
    assert "\x1b" not in good
    bad = render(check_checkpoint(variant(tmp_path / "d", draft_dir, drop("d2t"))), colour=True)
    assert bad.startswith("\x1b[31mFAIL")


def test_tensor_table_names_found_and_expected(draft_dir: Path) -> None:
    rows = {row.name: row for row in check_checkpoint(draft_dir).tensors}
    assert len(rows) == 16
    q = rows[f"{QKV}q_proj.weight"]
    assert (q.dtype, q.shape, q.expected_dtype, q.expected_shape) == ("F32", (48, 64), "F32", (48, 64))
