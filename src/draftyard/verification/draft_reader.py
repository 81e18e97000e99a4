"""A saved draft as a model again, for the simulation: what is measured is the checkpoint, not what training had in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from draftyard.artifacts.lineage import recorded_files, require_file
from draftyard.errors import ArtifactError

VERIFIER_PARTS = {"verifier_lm_head.weight", "verifier_norm.weight"}


def load_draft(directory: Path) -> Any:
    """The Eagle3DraftModel of a checkpoint in the speculators layout, in float32.

    Raises ArtifactError when a file is not the one that its lineage lists, or a tensor is missing, unknown or of another shape.
    """
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    if files := recorded_files(directory):
        for name in ("config.json", "model.safetensors"):
            require_file(directory, name, files)
    config = Eagle3SpeculatorConfig.from_pretrained(directory)
    config.transformer_layer_config._attn_implementation = "eager"
    model: Any = Eagle3DraftModel(config).float()
    path = directory / "model.safetensors"
    try:
        found = model.load_state_dict(load_file(path), strict=False)
    except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: a tensor of another shape than config.json gives
        raise ArtifactError(f"{path}: cannot be loaded ({' '.join(str(error).split())}); re-run the stage train") from None
    missing = set(found.missing_keys) - VERIFIER_PARTS
    if missing or found.unexpected_keys:
        raise ArtifactError(f"{path}: tensors missing: {sorted(missing)}, unknown: {sorted(found.unexpected_keys)}; re-run the stage train")
    return model.eval()
