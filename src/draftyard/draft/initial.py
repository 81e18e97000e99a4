"""The draft before its first step: random from the seed, with the verifier's parts that the params ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftyard.artifacts.card import VerifierCard
from draftyard.draft.geometry import DraftGeometry
from draftyard.draft.model import build_config, build_model
from draftyard.draft.vocabulary import VocabularyMap
from draftyard.errors import ParamError
from draftyard.params.train import TrainParams
from draftyard.verifier_weights import load_embeddings, load_mlp


def initial_model(geometry: DraftGeometry, vocabulary: VocabularyMap, card: VerifierCard, model_dir: Path, train: TrainParams) -> Any:
    """The Eagle3DraftModel in float32 as training starts from it; deterministic, so that `verify` can rebuild it.

    With train.mlp_from_verifier_layer the first layer's MLP and the norm before it are copies of that verifier layer's: late
    layers turn features into output directions, which a draft would otherwise have to learn again.
    Raises ParamError when that layer does not exist or has another shape.
    """
    config = build_config(geometry, card.name if card.source == "hf" else None, card.geometry.model_type, train.ttt_steps)
    d2t, t2d = vocabulary.tensors()
    model = build_model(config, d2t=d2t, t2d=t2d, **load_embeddings(model_dir), trainable_lm_head=train.trainable_lm_head, seed=train.seed)
    wanted = train.mlp_from_verifier_layer
    if wanted is None:
        return model
    layers = card.geometry.num_hidden_layers
    if not -layers <= wanted < layers:
        raise ParamError("train.mlp_from_verifier_layer", wanted, f"the verifier has {layers} layers: give {-layers}..{layers - 1}, or null")
    tensors = load_mlp(model_dir, wanted % layers)
    layer = model.layers[0]
    targets = {
        "gate_proj": layer.mlp.gate_proj.weight,
        "up_proj": layer.mlp.up_proj.weight,
        "down_proj": layer.mlp.down_proj.weight,
        "norm": layer.post_attention_layernorm.weight,
    }
    with torch.no_grad():
        for name, target in targets.items():
            if name not in tensors or tensors[name].shape != target.shape:
                found = list(tensors[name].shape) if name in tensors else "absent (not a plain gated MLP)"
                raise ParamError(
                    "train.mlp_from_verifier_layer", wanted, f"its {name} is {found}, the draft's is {list(target.shape)}: set it to null, or draft.intermediate_size to null"
                )
            target.copy_(tensors[name])
    return model
