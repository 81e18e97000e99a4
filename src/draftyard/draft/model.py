"""Building speculators' Eagle3DraftModel for training, and saving it as a checkpoint that travels."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftyard.artifacts.tensor_file import tensor_file
from draftyard.draft.geometry import DraftGeometry

TRAINABLE_ALWAYS_FROZEN = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight")


def build_config(geometry: DraftGeometry, verifier_name: str | None, verifier_architecture: str, num_speculative_tokens: int) -> Any:
    """The Eagle3SpeculatorConfig of `geometry`; every number of the decoder layer is set here, none is derived by the library.

    verifier_name: its id on the hub, which speculators looks up when it loads the draft; None for a verifier that has none.
    """
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    layer_config = LlamaConfig(
        hidden_size=geometry.hidden_size,
        intermediate_size=geometry.intermediate_size,
        num_hidden_layers=geometry.num_hidden_layers,
        num_attention_heads=geometry.num_attention_heads,
        num_key_value_heads=geometry.num_key_value_heads,
        head_dim=geometry.head_dim,
        vocab_size=geometry.vocab_size,
        max_position_embeddings=geometry.max_position_embeddings,
        rms_norm_eps=geometry.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": geometry.rope_theta},
        attention_bias=geometry.attention_bias,
        mlp_bias=geometry.mlp_bias,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    layer_config._attn_implementation = "eager"  # flex attention has no backward on a CPU; only the reference test uses this path
    return Eagle3SpeculatorConfig(
        transformer_layer_config=layer_config,
        draft_vocab_size=geometry.draft_vocab_size,
        norm_before_residual=geometry.norm_before_residual,
        norm_before_fc=geometry.norm_before_fc,
        norm_output=geometry.norm_output,
        eagle_aux_hidden_state_layer_ids=list(geometry.aux_layer_ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=num_speculative_tokens)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=verifier_name, architectures=[verifier_architecture]),
        ),
    )


def build_model(config: Any, *, d2t: Tensor, t2d: Tensor, embed_tokens: Tensor, lm_head: Tensor, norm: Tensor, trainable_lm_head: bool, seed: int) -> Any:
    """A fresh draft in float32 with the verifier's parts in place.

    d2t: int64 [V'], offsets. t2d: bool [V]. embed_tokens, lm_head: [V, H] of the verifier; norm: [H], its final norm.
    The draft's lm_head starts as the verifier's rows in d2t order. Everything else is initialised from `seed`.
    """
    from speculators.models.eagle3 import Eagle3DraftModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Eagle3DraftModel(config).float()
    if model.use_draft_vocab:
        model.load_vocab_mappings(t2d, d2t)
    rows = lm_head[torch.arange(len(d2t)) + d2t].float()
    with torch.no_grad():
        model.embed_tokens.weight.copy_(embed_tokens)
        model.lm_head.weight.copy_(rows)
        model.verifier_lm_head.weight.copy_(rows)
        model.verifier_norm.weight.copy_(norm)
        model.norm.weight.copy_(norm)
    model.lm_head.weight.requires_grad_(trainable_lm_head)
    for name, parameter in model.named_parameters():
        if name in TRAINABLE_ALWAYS_FROZEN:
            parameter.requires_grad_(False)
    return model


def trainable_parameters(model: Any) -> dict[str, Tensor]:
    """Name -> parameter of everything the optimizer moves."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_checkpoint(model: Any, directory: Path, dtype: torch.dtype, whole: dict[str, Tensor] | None = None) -> None:
    """Write config.json and model.safetensors as vLLM loads them: no machine path, no remote code, fixed key order.

    whole: the model's state where the model itself holds a share of it; None: that of the model.
    """
    from safetensors.torch import save_file

    state = {name: tensor for name, tensor in (whole or model.state_dict()).items() if name not in ("verifier_lm_head.weight", "verifier_norm.weight")}
    tensors = {name: (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous().cpu() for name, tensor in state.items()}
    with tensor_file(directory / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with tempfile.TemporaryDirectory() as scratch:
        model.config.save_pretrained(scratch)
        config = json.loads((Path(scratch) / "config.json").read_text(encoding="utf-8"))
    for key in ("auto_map", "_name_or_path", "_attn_implementation"):
        config.pop(key, None)
        config["transformer_layer_config"].pop(key, None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
