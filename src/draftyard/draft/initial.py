"""The draft before its first step: random from the seed, or started from a layer of the verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftyard.artifacts.card import VerifierCard
from draftyard.draft.geometry import DraftGeometry, VerifierGeometry
from draftyard.draft.model import build_config, build_model
from draftyard.draft.vocabulary import VocabularyMap
from draftyard.errors import ParamError
from draftyard.params.train import TrainParams
from draftyard.verifier_weights import load_embeddings, load_layer

KEY = "train.init_from_verifier_layer"
FC_RANDOM, ATTENTION_RANDOM = 0.1, 0.3
"""Shares of the random weights of fc and of q, k that are kept beside what comes from the verifier."""


def initial_model(geometry: DraftGeometry, vocabulary: VocabularyMap, card: VerifierCard, model_dir: Path, train: TrainParams) -> Any:
    """The Eagle3DraftModel in float32 as training starts from it; deterministic, so that `verify` can rebuild it.

    With train.init_from_verifier_layer the first draft layer starts as that layer of the verifier, and fc hands on the last
    aux state, so that before any training the draft already runs a verifier layer over the verifier's states; what is left to
    learn is to take the next token's embedding into account. docs/experiments.md has what it brings.
    Raises ParamError when that layer does not exist or has another shape.
    """
    config = build_config(geometry, card.name if card.source == "hf" else None, card.geometry.model_type, train.ttt_steps)
    d2t, t2d = vocabulary.tensors()
    model = build_model(config, d2t=d2t, t2d=t2d, **load_embeddings(model_dir), trainable_lm_head=train.trainable_lm_head, seed=train.seed)
    wanted = train.init_from_verifier_layer
    if wanted is None:
        return model
    layers = card.geometry.num_hidden_layers
    if not -layers <= wanted < layers:
        raise ParamError(KEY, wanted, f"the verifier has {layers} layers: give {-layers}..{layers - 1}, or null")
    start_from_layer(model, geometry, card.geometry, load_layer(model_dir, wanted % layers), wanted)
    return model


@torch.no_grad()
def start_from_layer(model: Any, geometry: DraftGeometry, verifier: VerifierGeometry, tensors: dict[str, Tensor], wanted: int) -> None:
    """Copy a verifier layer (load_layer) into the first layer of `model`; `wanted` is named in errors.

    The layer's inputs are the hidden-state half of q, k and v; the embedding half stays random.
    """
    layer, hidden = model.layers[0], geometry.hidden_size
    _require(
        geometry.num_attention_heads == verifier.num_attention_heads and geometry.num_key_value_heads == verifier.num_key_value_heads,
        wanted,
        "needs as many heads as the verifier",
    )
    _require(
        geometry.head_dim % verifier.head_dim == 0, wanted, f"needs draft.head_dim={geometry.head_dim} to be a multiple of the verifier's {verifier.head_dim}"
    )
    _require(geometry.rope_theta == verifier.rope_theta, wanted, "needs the verifier's rope_theta")
    query, key_value, width = verifier.num_attention_heads * verifier.head_dim, verifier.num_key_value_heads * verifier.head_dim, geometry.intermediate_size
    expected = {
        "q_proj": (query, hidden),
        "k_proj": (key_value, hidden),
        "v_proj": (key_value, hidden),
        "o_proj": (hidden, query),
        "gate_proj": (width, hidden),
        "up_proj": (width, hidden),
        "down_proj": (hidden, width),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for name, shape in expected.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        _require(
            found == shape,
            wanted,
            f"needs {name} of shape {list(shape)}, the verifier's is {'absent' if found is None else list(found)} (latent attention or experts?)",
        )
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(tensors[name])
    layer.post_attention_layernorm.weight.copy_(tensors["post_attention_layernorm"])
    layer.hidden_norm.weight.copy_(tensors["input_layernorm"])
    wide, narrow = geometry.head_dim, verifier.head_dim
    scale = (wide / narrow) ** 0.25  # on q and on k: the scores are divided by sqrt(head_dim)
    for projection, name in ((layer.self_attn.q_proj, "q_proj"), (layer.self_attn.k_proj, "k_proj")):
        projection.weight.mul_(ATTENTION_RANDOM)
        projection.weight[:, hidden:] += widen_rotary(tensors[name], narrow, wide) * scale
    heads, groups = verifier.num_attention_heads, verifier.num_key_value_heads
    layer.self_attn.v_proj.weight.view(groups, wide, 2 * hidden)[:, :narrow, hidden:] += tensors["v_proj"].view(groups, narrow, hidden)
    layer.self_attn.o_proj.weight.view(hidden, heads, wide)[:, :, :narrow] += tensors["o_proj"].view(hidden, heads, narrow)
    model.fc.weight.mul_(FC_RANDOM)
    model.fc.weight[:, -hidden:] += torch.eye(hidden)


def widen_rotary(weight: Tensor, narrow: int, wide: int) -> Tensor:
    """Rows of a query or key projection [heads * narrow, H] -> [heads * wide, H], zeros between.

    RoPE turns dims (i, i + d/2) of a head of width d at frequency theta^(-2i/d); pair i of a narrow head has the frequency of
    pair i * wide / narrow of a wide one, so that is where its rows go.
    """
    heads = weight.shape[0] // narrow
    source = weight.view(heads, 2, narrow // 2, -1)
    out = torch.zeros(heads, 2, wide // 2, weight.shape[1])
    out[:, :, :: wide // narrow] = source
    return out.view(heads * wide, -1)


def _require(condition: bool, wanted: int, rule: str) -> None:
    if not condition:
        raise ParamError(KEY, wanted, f"{rule}; set it to null for a random start")
