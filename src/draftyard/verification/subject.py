"""What the checks look at: the draft's headers under one naming, its config, and what is known of the verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.safetensors_header import Checkpoint, TensorEntry, open_checkpoint, open_selected
from draftyard.artifacts.untrusted import read_untrusted_json
from draftyard.draft.geometry import DraftGeometry, TensorSpec, VerifierGeometry
from draftyard.draft.layouts import DraftConfig, Layout, detect_layout, read_draft_config, to_layout
from draftyard.errors import ArtifactError

CONFIG_FILE = "config.json"
MAX_VERIFIER_JSON_BYTES = 64 << 20
"""A tokenizer.json of 200,000 tokens takes about 20 MB."""
_EMBED_NAMES = ("model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "embed_tokens.weight")
_HEAD_NAMES = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "model.language_model.lm_head.weight")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft under the names of the speculators layout. twice: tensors that occur under two names, or in two shards."""

    checkpoint: Checkpoint
    config: DraftConfig
    layout: Layout | None
    names: Mapping[str, str]
    twice: tuple[str, ...]

    @property
    def geometry(self) -> DraftGeometry:
        """As the config says."""
        return self.config.geometry

    def spec(self, name: str) -> TensorSpec | None:
        """dtype and shape of the tensor that the speculators layout calls `name`."""
        entry = self.entry(name)
        return None if entry is None else entry.spec

    def entry(self, name: str) -> TensorEntry | None:
        """Where that tensor lies."""
        return self.checkpoint.tensors[self.names[name]] if name in self.names else None


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """What is known of the verifier. directory: None when only a config was given."""

    source: str
    raw: Mapping[str, Any]
    geometry: VerifierGeometry
    directory: Path | None
    weights: Checkpoint | None
    """Its embeddings and lm_head (headers only); None without weights."""

    def embed_tokens(self) -> str | None:
        """Name of its embedding tensor."""
        return self._find(_EMBED_NAMES)

    def lm_head(self) -> str | None:
        """Name of its lm_head tensor: the embeddings when it has none of its own (tied)."""
        return self._find(_HEAD_NAMES) or self.embed_tokens()

    def _find(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if self.weights is not None and name in self.weights.tensors), None)


def open_draft(path: Path) -> Draft:
    """Read the headers and the config of the checkpoint `path` (a directory, or a safetensors file with config.json beside it).

    Raises ArtifactError when it cannot be read as a checkpoint.
    """
    checkpoint = open_checkpoint(path)
    config_file = checkpoint.directory / CONFIG_FILE
    config = read_draft_config(read_untrusted_json(config_file), str(config_file), checkpoint.specs())
    names: dict[str, str] = {}
    twice = list(checkpoint.duplicates)
    for name in checkpoint.tensors:
        canonical = to_layout(name, "speculators")
        if canonical in names:
            twice.append(f"{names[canonical]} and {name}")
        names.setdefault(canonical, name)
    return Draft(checkpoint=checkpoint, config=config, layout=detect_layout(checkpoint.tensors), names=names, twice=tuple(twice))


def open_verifier(directory: Path | None, config: Path | None) -> Verifier | None:
    """The verifier from its directory, or from a config.json alone; None when neither is given. Raises ArtifactError."""
    if directory is None and config is None:
        return None
    path = config or (directory or Path()) / CONFIG_FILE
    raw = read_untrusted_json(path, max_bytes=MAX_VERIFIER_JSON_BYTES)
    weights = None
    if directory is not None and any(directory.glob("*.safetensors")):
        weights = open_selected(directory, _EMBED_NAMES + _HEAD_NAMES)
    return Verifier(source=str(path), raw=raw, geometry=VerifierGeometry.from_config(raw, str(path)), directory=directory, weights=weights)


def read_reference(path: Path) -> dict[str, TensorSpec]:
    """A tensor table to compare with, under the names of the speculators layout.

    `path`: a checkpoint, or a JSON table of name -> ["BF16", [rows, columns]] or {"dtype", "shape"} (as `plan --json` prints under
    "tensors"). Raises ArtifactError.
    """
    if path.suffix != ".json":
        return {to_layout(name, "speculators"): spec for name, spec in open_checkpoint(path).specs().items()}
    table = read_untrusted_json(path)
    inner = table.get("tensors")
    specs = {}
    for name, value in (inner if isinstance(inner, Mapping) else table).items():
        dtype, shape = (
            (value.get("dtype"), value.get("shape")) if isinstance(value, Mapping) else value if isinstance(value, list) and len(value) == 2 else (None, None)
        )
        if not isinstance(dtype, str) or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise ArtifactError(f'{path}: {name}: must be ["BF16", [rows, columns]] or {{"dtype": ..., "shape": ...}}')
        specs[to_layout(name, "speculators")] = TensorSpec(dtype, tuple(shape))
    return specs
