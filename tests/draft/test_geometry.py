"""Shapes and counts by formula, against speculators' model on the meta device and the public numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from draftyard.draft.geometry import (
    DraftGeometry,
    VerifierGeometry,
    count_weights,
    expected_tensors,
    parameter_counts,
    resolve,
)
from draftyard.errors import ArtifactError, ParamError
from draftyard.params.draft import DraftParams

KIMI = VerifierGeometry(
    model_type="kimi_k2",
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=64,
    num_key_value_heads=64,
    head_dim=128,
    intermediate_size=18432,
    vocab_size=163840,
    max_position_embeddings=262144,
    rms_norm_eps=1e-5,
    rope_theta=50000.0,
    tie_word_embeddings=False,
    eos_token_ids=(163586,),
)
SMALL = dataclasses.replace(
    KIMI, hidden_size=32, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64, vocab_size=96
)


def draft_params(**changes: Any) -> DraftParams:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(DraftParams)}
    values.update(num_hidden_layers=1, norm_before_residual=False, norm_before_fc=False, norm_output=False, dtype="bfloat16")
    return DraftParams(**{**values, **changes})


def kimi_draft(head_dim: int) -> DraftGeometry:
    return resolve(draft_params(vocab_size=32000, head_dim=head_dim), KIMI, (2, 30, 58))


@pytest.mark.parametrize(("head_dim", "total"), [(128, 2_594_737_152), (112, 2_543_356_928)])
def test_total_is_the_original_projects(head_dim: int, total: int) -> None:
    counts = parameter_counts(kimi_draft(head_dim), trainable_lm_head=False)
    assert counts.total == total
    assert counts.saved == total - 32000 * 7168 - 7168
    assert len(expected_tensors(kimi_draft(head_dim))) == 16


def test_weights_of_the_reference_layout() -> None:
    tensors = expected_tensors(kimi_draft(128), embed_tokens=False)
    assert len(tensors) == 15
    assert count_weights(tensors) == 1_190_948_864


def test_trainable_depends_on_lm_head() -> None:
    frozen = parameter_counts(kimi_draft(128), trainable_lm_head=False).trainable
    assert frozen == 1_190_948_864 - 32000 * 7168
    assert parameter_counts(kimi_draft(128), trainable_lm_head=True).trainable == 1_190_948_864


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"num_hidden_layers": 3},
        {"model_type": "qwen3"},
        {"attention_bias": True, "mlp_bias": True},
        {"draft_vocab_size": 96},
        {"head_dim": 20},
        {"aux_layer_ids": (1, 2, 4, 6)},
    ],
    ids=str,
)
def test_formula_equals_speculators_model(changes: dict[str, Any]) -> None:
    geometry = dataclasses.replace(resolve(draft_params(vocab_size=48), SMALL, (2, 4, 5)), **changes)
    model = meta_model(geometry)
    saved = {name: tuple(t.shape) for name, t in model.state_dict().items() if not name.startswith("verifier_")}
    assert {name: spec.shape for name, spec in expected_tensors(geometry).items()} == saved
    counts = parameter_counts(geometry, trainable_lm_head=False)
    assert counts.total == sum(p.numel() for p in model.parameters())
    assert counts.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)


def meta_model(g: DraftGeometry) -> Any:
    import torch
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from transformers import LlamaConfig, Qwen3Config

    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size", "attention_bias")
    shared = {name: getattr(g, name) for name in names}
    layer = Qwen3Config(**shared) if g.qk_norm else LlamaConfig(**shared, mlp_bias=g.mlp_bias)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=g.draft_vocab_size,
        norm_before_fc=g.norm_before_fc,
        fc_norm=g.fc_norm,
        eagle_aux_hidden_state_layer_ids=list(g.aux_layer_ids),
    )
    with torch.device("meta"):
        return Eagle3DraftModel(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 2}, "draft.num_attention_heads=9: is not divisible by draft.num_key_value_heads=2: "),
        ({"vocab_size": 97}, "draft.vocab_size=97: is larger than the verifier's vocabulary of 96 tokens"),
        ({"hidden_size": 64}, "draft.hidden_size=64: must be the verifier's hidden_size=32"),
    ],
)
def test_resolve_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message.replace("(", r"\(")):
        resolve(draft_params(**changes), SMALL, (2, 4, 5))


@pytest.mark.parametrize(("ids", "rule"), [((2, 4), "exactly 3"), ((4, 2, 5), "strictly increasing"), ((2, 4, 9), r"ids lie in 0\.\.8")])
def test_resolve_refuses_aux_layer_ids(ids: tuple[int, ...], rule: str) -> None:
    with pytest.raises(ParamError, match=rule):
        resolve(draft_params(), SMALL, ids)


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def test_from_config_flat() -> None:
    geometry = VerifierGeometry.from_config(CONFIG)
    assert (geometry.head_dim, geometry.rope_theta, geometry.eos_token_ids) == (64, 100000.0, (2,))
    assert geometry.tie_word_embeddings
    assert VerifierGeometry.from_json(geometry.to_json()) == geometry


def test_from_config_nested_text_config_and_rope_parameters() -> None:
    text = {key: value for key, value in CONFIG.items() if key not in ("rope_theta", "eos_token_id")}
    text["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
    geometry = VerifierGeometry.from_config({"model_type": "vision", "text_config": text, "eos_token_id": [1, 106]})
    assert (geometry.model_type, geometry.rope_theta, geometry.eos_token_ids) == ("llama", 5e5, (1, 106))
    text["rope_parameters"] = {"full_attention": {"rope_theta": 1e6}}
    assert VerifierGeometry.from_config(text).rope_theta == 1e6


def test_from_config_mla_head_is_the_value_head() -> None:
    assert VerifierGeometry.from_config({**CONFIG, "kv_lora_rank": 512, "v_head_dim": 128, "head_dim": 64}).head_dim == 128


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", None),
        ("hidden_size", True),
        ("vocab_size", "49152"),
        ("num_hidden_layers", 0),
        ("rope_theta", float("nan")),
        ("rms_norm_eps", -1.0),
        ("eos_token_id", "2"),
        ("hidden_size", 1 << 60),
    ],
)
def test_from_config_refuses(key: str, value: object) -> None:
    with pytest.raises(ArtifactError, match=key):
        VerifierGeometry.from_config({**CONFIG, key: value})
