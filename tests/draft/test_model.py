"""The model that is trained and the checkpoint that travels: what is frozen, what is saved, who can read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftyard.artifacts.files import digest_file
from draftyard.draft.geometry import expected_tensors, parameter_counts
from draftyard.draft.model import build_config, build_model, save_checkpoint, trainable_parameters
from draftyard.verification.draft_reader import load_draft
from draftyard.verifier_weights import load_embeddings
from tests.training.small import DRAFT_VOCAB, VOCAB, small_geometry, small_maps, small_model, verifier_parts
from tests.verification.checkpoints import build_verifier

NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "bool": "BOOL"}


def build(trainable_lm_head: bool = True, seed: int = 3, name: str | None = "org/model", **changes: Any) -> Any:
    geometry = small_geometry(**changes)
    d2t, t2d = small_maps(3, geometry.draft_vocab_size)
    config = build_config(geometry, name, "LlamaForCausalLM", 3)
    return build_model(config, d2t=d2t, t2d=t2d, **verifier_parts(), trainable_lm_head=trainable_lm_head, seed=seed)


def test_every_number_of_the_layer_is_the_geometrys() -> None:
    geometry = small_geometry(head_dim=20, rope_theta=5000.0, num_hidden_layers=2)
    layer = build_config(geometry, "org/model", "LlamaForCausalLM", 3).transformer_layer_config
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"):
        assert getattr(layer, name) == getattr(geometry, name), name
    assert layer.rope_parameters["rope_theta"] == 5000.0
    assert not getattr(layer, "sliding_window", None)
    assert layer.tie_word_embeddings is False


@pytest.mark.parametrize("trainable_lm_head", [True, False])
def test_what_is_trained_and_what_is_frozen(trainable_lm_head: bool) -> None:
    model = build(trainable_lm_head)
    trained = trainable_parameters(model)
    everything = {name for name, _ in model.named_parameters()}
    frozen = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"} | (set() if trainable_lm_head else {"lm_head.weight"})
    assert set(trained) == everything - frozen
    counts = parameter_counts(small_geometry(), trainable_lm_head=trainable_lm_head)
    assert sum(p.numel() for p in trained.values()) == counts.trainable
    assert sum(p.numel() for p in model.parameters()) == counts.total
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())  # speculators leaves NaN where nothing was loaded


def test_lm_head_starts_as_the_verifiers_rows_in_the_order_of_d2t() -> None:
    model, parts = build(), verifier_parts()
    d2t, t2d = small_maps()
    for draft_id in range(DRAFT_VOCAB):
        token = draft_id + int(d2t[draft_id])
        assert bool(t2d[token])
        assert torch.equal(model.lm_head.weight[draft_id], parts["lm_head"][token])
        assert torch.equal(model.verifier_lm_head.weight[draft_id], parts["lm_head"][token])
    assert torch.equal(model.embed_tokens.weight, parts["embed_tokens"])
    assert torch.equal(model.verifier_norm.weight, parts["norm"])
    assert torch.equal(model.norm.weight, parts["norm"])
    assert torch.equal(model.d2t, d2t)
    assert torch.equal(model.t2d, t2d)
    assert model.lm_head.weight.data_ptr() != model.verifier_lm_head.weight.data_ptr()


def test_initial_weights_follow_the_seed_and_disturb_nobody_elses() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = build().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    second, other = build().state_dict(), build(seed=4).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])
    assert not torch.equal(first["layers.0.mlp.up_proj.weight"], other["layers.0.mlp.up_proj.weight"])


VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_fc": True},
    {"norm_before_residual": True, "norm_output": True},
    {"num_hidden_layers": 2},
    {"draft_vocab_size": VOCAB},
    {"dtype": "bfloat16"},
    {"dtype": "float16", "head_dim": 12},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda v: "+".join(v) or "plain")
def test_the_checkpoint_holds_exactly_the_tensors_of_the_formula(changes: dict[str, Any], tmp_path: Path) -> None:
    geometry = small_geometry(**changes)
    save_checkpoint(build(**changes), tmp_path, getattr(torch, geometry.dtype))
    saved = load_file(tmp_path / "model.safetensors")
    found = {name: (NAMES[str(t.dtype).removeprefix("torch.")], tuple(t.shape)) for name, t in saved.items()}
    assert found == {name: (spec.dtype, spec.shape) for name, spec in expected_tensors(geometry).items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_checkpoint_is_the_same_bytes_every_time_and_names_no_machine(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_checkpoint(build(), tmp_path / name, torch.bfloat16)
    assert digest_file(tmp_path / "one/model.safetensors") == digest_file(tmp_path / "two/model.safetensors")
    text = (tmp_path / "one/config.json").read_text()
    assert text == (tmp_path / "two/config.json").read_text()
    config = json.loads(text)
    assert config["dtype"] == "bfloat16"
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["transformer_layer_config"]["head_dim"] == 16
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    for word in ("auto_map", "_attn_implementation", '"_name_or_path', '"/', "/tmp"):
        assert word not in text
    assert not list((tmp_path / "one").glob("*.py"))


@pytest.mark.parametrize("changes", VARIANTS[:5], ids=lambda v: "+".join(v) or "plain")
def test_the_checkpoint_is_read_back_by_us(changes: dict[str, Any], tmp_path: Path) -> None:
    model = build(**changes)
    save_checkpoint(model, tmp_path, torch.float32)
    read = load_draft(tmp_path)
    state = read.state_dict()
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(tensor, state[name])
        assert torch.equal(tensor, model.state_dict()[name])
    for flag in ("norm_before_residual", "norm_before_fc", "norm_output"):
        assert getattr(read.config, flag) == getattr(model.config, flag)


def test_the_checkpoint_is_read_by_speculators_and_drafts_the_same(tmp_path: Path) -> None:
    """The library's own loader, given the verifier's directory: it takes embeddings, lm_head rows and norm from there, and must find ours."""
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    verifier = build_verifier(tmp_path / "verifier")
    d2t, t2d = small_maps()
    geometry = small_geometry(aux_layer_ids=(2, 4, 5))
    config = build_config(geometry, None, "LlamaForCausalLM", 3)
    model = build_model(config, d2t=d2t, t2d=t2d, **load_embeddings(verifier), trainable_lm_head=False, seed=3)
    save_checkpoint(model, tmp_path / "draft", torch.float32)
    path = tmp_path / "draft/config.json"
    written = json.loads(path.read_text())
    assert written["speculators_config"]["verifier"]["name_or_path"] is None
    written["speculators_config"]["verifier"]["name_or_path"] = str(verifier)
    path.write_text(json.dumps(written))
    read: Any = Eagle3DraftModel.from_pretrained(tmp_path / "draft")
    for name, tensor in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor), name
    assert read.config.eagle_aux_hidden_state_layer_ids == [2, 4, 5]
    again: Any = Eagle3DraftModel(Eagle3SpeculatorConfig.from_pretrained(tmp_path / "draft"))
    assert again.config.transformer_layer_config.head_dim == 16


def test_the_helper_models_differ_by_seed() -> None:
    assert not torch.equal(small_model(seed=1).fc.weight, small_model(seed=2).fc.weight)
