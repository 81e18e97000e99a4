"""Exporting a checkpoint from one layout to the other: config rewritten, tensor names bridged, bytes copied as they are."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import publish_directory, write_json
from draftyard.artifacts.safetensors_header import WEIGHTS_FILE, Checkpoint, open_checkpoint
from draftyard.artifacts.safetensors_writer import write_safetensors
from draftyard.artifacts.untrusted import read_untrusted_json
from draftyard.draft.layouts import AUX_KEY, DraftConfig, Layout, detect_layout, read_draft_config, to_layout
from draftyard.errors import ArtifactError

CONFIG_FILE = "config.json"
EMBED_TOKENS = "embed_tokens.weight"
ORIGIN_KEY = "speculators"
"""In a flat config: the keys of a nested one that a flat one has no place for (proposal methods, verifier)."""
_ARCHITECTURES = {"llama": "LlamaForCausalLMEagle3", "qwen3": "Eagle3Qwen3ForCausalLM"}
_TOP_KEYS = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size", AUX_KEY)
_NEVER_TRAVELS = ("auto_map", "_name_or_path", "_attn_implementation")
_PROPOSAL = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}


def export_checkpoint(source: Path, out: Path, layout: Layout, *, embed_tokens: bool | None = None) -> None:
    """Write the checkpoint `source` to the directory `out` in `layout`, tensors byte for byte.

    embed_tokens: True requires them, False leaves them out (the engine then shares the verifier's), None keeps what is there.
    The result is one file, whatever the source's shards. `out` must not exist, or be empty.

    Raises:
        ArtifactError: the source is no EAGLE-3 checkpoint of a layout known here, or the embeddings are missing or needed.
    """
    checkpoint = open_checkpoint(source)
    config_file = checkpoint.directory / CONFIG_FILE
    config = read_draft_config(read_untrusted_json(config_file), str(config_file), checkpoint.specs())
    if detect_layout(checkpoint.tensors) is None:
        raise ArtifactError(f"{source}: neither layout is recognised (no tensor, or both kinds, named layers.0.* and midlayer.*); run draftyard check on it")
    if not config.known_family:
        raise ArtifactError(f"{source}: a draft of family {config.family} has one layout only; export knows llama and qwen3")
    if checkpoint.duplicates or checkpoint.index_problems:
        raise ArtifactError(
            f"{source}: {'; '.join([*checkpoint.index_problems, *(f'{n} lies in two shards' for n in checkpoint.duplicates)][:3])}; run draftyard check on it"
        )
    names = _names(checkpoint, config, layout, embed_tokens)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArtifactError(f"{out}: exists and is not empty; export writes a new directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        write_json(staging / CONFIG_FILE, flat_config(config) if layout == "midlayer" else nested_config(config))
        specs = {new: checkpoint.tensors[old].spec for new, old in names.items()}
        write_safetensors(staging / WEIGHTS_FILE, specs, lambda name: checkpoint.raw_chunks(names[name]))
        staging.chmod(0o755)
        publish_directory(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _names(checkpoint: Checkpoint, config: DraftConfig, layout: Layout, embed_tokens: bool | None) -> dict[str, str]:
    """New name -> old name of every tensor that is copied."""
    if embed_tokens is True and EMBED_TOKENS not in checkpoint.tensors:
        raise ArtifactError(f"{checkpoint.directory}: has no {EMBED_TOKENS} to keep; leave the flag away, the engine shares the verifier's")
    if embed_tokens is False and config.geometry.hidden_size != config.geometry.target_hidden_size:
        raise ArtifactError(
            f"{checkpoint.directory}: {EMBED_TOKENS} cannot be dropped: hidden_size {config.geometry.hidden_size} differs from the verifier's "
            f"{config.geometry.target_hidden_size}, so the engine cannot share the verifier's embeddings"
        )
    return {to_layout(name, layout): name for name in checkpoint.tensors if embed_tokens is not False or name != EMBED_TOKENS}


def flat_config(config: DraftConfig) -> dict[str, Any]:
    """The config as SpecForge, AQ-MedAI and vLLM's `LlamaForCausalLMEagle3` write it; every size explicit."""
    raw, g = dict(config.raw), config.geometry
    if config.kind == "flat":
        return {key: value for key, value in raw.items() if key not in _NEVER_TRAVELS}
    layer = {key: value for key, value in config.layer.items() if key not in _NEVER_TRAVELS}
    eagle: dict[str, Any] = {"use_aux_hidden_state": True}
    if g.aux_layer_ids:
        eagle[AUX_KEY] = list(g.aux_layer_ids)
    flat = {
        **layer,
        **_sizes(config),
        "architectures": [_ARCHITECTURES[config.family]],
        "dtype": g.dtype,
        "draft_vocab_size": g.draft_vocab_size,
        "eagle_config": eagle,
        "norm_before_residual": g.norm_before_residual,
        "norm_before_fc": g.norm_before_fc,
        "fc_norm": g.fc_norm,
        "norm_output": g.norm_output,
        "tie_word_embeddings": False,
    }
    if g.target_hidden_size != g.hidden_size:
        flat["target_hidden_size"] = g.target_hidden_size
    origin = {key: value for key, value in raw.items() if key not in {*flat, *_TOP_KEYS, *_NEVER_TRAVELS, "transformer_layer_config", "torch_dtype"}}
    flat[ORIGIN_KEY] = _without_local_path(origin)
    return flat


def nested_config(config: DraftConfig) -> dict[str, Any]:
    """The config as speculators writes it: the decoder layer under transformer_layer_config, every size explicit."""
    raw, g = dict(config.raw), config.geometry
    if config.kind == "nested":
        return _without_local_path({key: value for key, value in raw.items() if key not in _NEVER_TRAVELS})
    outside = {*_TOP_KEYS, *_NEVER_TRAVELS, "architectures", "eagle_config", "dtype", "torch_dtype", "transformers_version", ORIGIN_KEY}
    layer = {**{key: value for key, value in raw.items() if key not in outside}, **_sizes(config)}
    if g.num_aux_layers != 3:
        layer["num_aux_hidden_states"] = g.num_aux_layers  # vLLM counts top-level ids as 3, whatever they are
    origin = raw.get(ORIGIN_KEY)
    speculators = origin.get("speculators_config") if isinstance(origin, Mapping) else None
    return {
        **(origin if isinstance(origin, Mapping) else {}),
        "architectures": ["Eagle3DraftModel"],
        "dtype": g.dtype,
        "draft_vocab_size": g.draft_vocab_size,
        AUX_KEY: list(g.aux_layer_ids) or None,
        "fc_norm": g.fc_norm,
        "norm_before_fc": g.norm_before_fc,
        "norm_before_residual": g.norm_before_residual,
        "norm_output": g.norm_output,
        "speculators_config": speculators
        or {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [_PROPOSAL],
            "verifier": {"architectures": [], "name_or_path": None},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": origin.get("speculators_version", "0.9.0") if isinstance(origin, Mapping) else "0.9.0",
        "target_hidden_size": g.target_hidden_size if g.target_hidden_size != g.hidden_size else None,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def _sizes(config: DraftConfig) -> dict[str, Any]:
    """The sizes of the decoder layer, which a saved config leaves out where they equal a class default."""
    g = config.geometry
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    )
    sizes = {name: getattr(g, name) for name in names}
    rope = {} if config.layer.get("rope_theta") is not None or config.layer.get("rope_parameters") is not None else {"rope_theta": g.rope_theta}
    return {**sizes, **rope, "model_type": config.family}


def _without_local_path(values: dict[str, Any]) -> dict[str, Any]:
    """Without the verifier's path on the machine that trained the draft: it names nothing elsewhere."""
    speculators = values.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if not isinstance(speculators, Mapping) or not isinstance(verifier, Mapping) or not isinstance(name, str) or not re.match(r"[/~.\\]|[A-Za-z]:[/\\]", name):
        return values
    return {**values, "speculators_config": {**speculators, "verifier": {**verifier, "name_or_path": Path(name).name}}}
