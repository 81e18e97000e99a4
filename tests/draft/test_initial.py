"""A draft layer started from a verifier layer computes what the verifier's layer computes, by transformers' own code."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from draftyard.draft.geometry import VerifierGeometry
from draftyard.draft.initial import ATTENTION_RANDOM, FC_RANDOM, start_from_layer
from draftyard.errors import ParamError
from draftyard.training.forward import TttForward
from tests.training.small import HIDDEN, small_geometry, small_model

HEADS, GROUPS, NARROW, WIDE = 4, 2, 8, 16


def verifier_geometry() -> VerifierGeometry:
    return VerifierGeometry(
        model_type="llama", hidden_size=HIDDEN, num_hidden_layers=4, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=NARROW, intermediate_size=48,
        vocab_size=96, max_position_embeddings=128, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, eos_token_ids=(0,),
    )  # fmt: skip


def verifier_layer() -> tuple[LlamaDecoderLayer, LlamaConfig]:
    config = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=NARROW, intermediate_size=48, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    layer = LlamaDecoderLayer(config, 0)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p) * 0.3 if p.ndim == 2 else 1 + torch.randn_like(p) * 0.2)
    return layer, config


def layer_tensors(layer: LlamaDecoderLayer) -> dict[str, torch.Tensor]:
    return {name.removesuffix(".weight").split(".")[-1]: p.detach().clone() for name, p in layer.named_parameters()}


def test_the_started_layer_is_the_verifiers_layer_on_the_last_aux_state() -> None:
    layer, config = verifier_layer()
    model = small_model(head_dim=WIDE)
    with torch.no_grad():  # without the random share, what is left is the verifier's layer exactly
        for p in (model.fc.weight, *(getattr(model.layers[0].self_attn, f"{n}_proj").weight for n in "qkvo")):
            p.zero_()
    start_from_layer(model, small_geometry(head_dim=WIDE), verifier_geometry(), layer_tensors(layer), -1)
    torch.manual_seed(2)
    aux = torch.randn(1, 11, 3 * HIDDEN)
    states = aux[..., -HIDDEN:]
    positions = torch.arange(11)[None]
    mask = torch.full((11, 11), float("-inf")).triu(1)[None, None]
    expected = layer(states, attention_mask=mask, position_embeddings=LlamaRotaryEmbedding(config)(states, positions))
    expected = expected[0] if isinstance(expected, tuple) else expected
    found = []
    TttForward(model).steps(aux, lambda k, _: torch.zeros(1, 11, dtype=torch.int64), 1, lambda k, normed: found.append(normed))
    torch.testing.assert_close(found[0], model.norm(expected), rtol=1e-4, atol=1e-5)


def test_random_shares_are_kept() -> None:
    layer, _ = verifier_layer()
    before, model = small_model(head_dim=WIDE), small_model(head_dim=WIDE)
    start_from_layer(model, small_geometry(head_dim=WIDE), verifier_geometry(), layer_tensors(layer), -1)
    torch.testing.assert_close(model.fc.weight[:, : 2 * HIDDEN], before.fc.weight[:, : 2 * HIDDEN] * FC_RANDOM)
    torch.testing.assert_close(model.layers[0].self_attn.q_proj.weight[:, :HIDDEN], before.layers[0].self_attn.q_proj.weight[:, :HIDDEN] * ATTENTION_RANDOM)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 8}, "as many heads"),
        ({"rope_theta": 5.0}, "rope_theta"),
        ({"head_dim": 12}, "multiple"),
        ({"intermediate_size": 40}, r"gate_proj of shape \[40, 32\]"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(change: dict, message: str) -> None:
    layer, _ = verifier_layer()
    geometry = dataclasses.replace(small_geometry(head_dim=WIDE), **change)
    with pytest.raises(ParamError, match=message):
        start_from_layer(small_model(head_dim=WIDE), geometry, verifier_geometry(), layer_tensors(layer), -1)


def test_experts_are_refused() -> None:
    layer, _ = verifier_layer()
    tensors = {name: t for name, t in layer_tensors(layer).items() if name != "gate_proj"}
    with pytest.raises(ParamError, match="absent"):
        start_from_layer(small_model(head_dim=WIDE), small_geometry(head_dim=WIDE), verifier_geometry(), tensors, -1)
