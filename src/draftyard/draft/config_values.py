"""Reading numbers out of a config.json that strangers wrote: types, signs, finiteness, and the names a value goes by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftyard.errors import ArtifactError
from draftyard.params.base import require

LARGEST_NUMBER = 1 << 31
"""No size in a model config reaches this; a larger one is damage or an attack."""
_TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
_EPSILON_KEYS = ("rms_norm_eps", "norm_eps", "layer_norm_eps", "layer_norm_epsilon")
_REQUIRED = object()


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json: the nested text_config of a multimodal model, or the config itself."""
    for key in _TEXT_CONFIGS:
        nested = config.get(key)
        if isinstance(nested, Mapping) and "hidden_size" in nested:
            return nested
    return config


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json as the engine sees it with `verifier.engine_args.hf_overrides`: text_config is updated, every other key replaced.

    Raises ParamError for an override that a multimodal model keeps in its text_config: outside, the engine would pass it over.
    """
    nested = next((key for key in _TEXT_CONFIGS if text_config(config) is config.get(key)), None)
    changed = dict(config)
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(config.get(key), Mapping) and key in _TEXT_CONFIGS:
            changed[key] = with_overrides(config[key], value)
            continue
        rule = f"this verifier keeps it in {nested}: write hf_overrides: {{{nested}: {{{key}: ...}}}}"
        require(nested is None, f"verifier.engine_args.hf_overrides.{key}", value, rule)
        require(key not in _TEXT_CONFIGS, f"verifier.engine_args.hf_overrides.{key}", value, "this verifier has no such part: write its keys directly")
        changed[key] = value
        if key == "rope_parameters":  # what older configs say beside it no longer holds
            for replaced in ("rope_theta", "rope_scaling"):
                changed.pop(replaced, None)
    return changed


def read_int(config: Mapping[str, Any], key: str, source: str, *, default: Any = _REQUIRED) -> int:
    """A positive whole number; an absent or null key gives `default`. Raises ArtifactError."""
    value = config.get(key)
    if value is None and default is not _REQUIRED:
        return int(default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST_NUMBER:
        raise ArtifactError(f"{source}: {key}={shorten(value)}: must be a whole number above 0")
    return value


def read_float(config: Mapping[str, Any], key: str, source: str, *, default: float) -> float:
    """A positive finite number; an absent or null key gives `default`. Raises ArtifactError."""
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:  # NaN fails both comparisons
        raise ArtifactError(f"{source}: {key}={shorten(value)}: must be a finite number above 0")
    return float(value)


def read_epsilon(config: Mapping[str, Any], source: str) -> float:
    """The norms' epsilon under whichever name; 1e-6 when absent, as in transformers' LlamaConfig."""
    key = next((key for key in _EPSILON_KEYS if config.get(key) is not None), _EPSILON_KEYS[0])
    return read_float(config, key, source, default=1e-6)


def read_rope_theta(config: Mapping[str, Any], source: str) -> float:
    """RoPE's base: rope_theta, or rope_parameters.rope_theta (transformers 5), flat or per layer type; 10000 when absent."""
    nested = config.get("rope_parameters")
    candidates = [nested, *nested.values()] if isinstance(nested, Mapping) else []
    inside = next((value for value in candidates if isinstance(value, Mapping) and value.get("rope_theta") is not None), config)
    return read_float(config if config.get("rope_theta") is not None else inside, "rope_theta", source, default=10000.0)


def shorten(value: object, limit: int = 80) -> str:
    """repr(value), cut: a hostile config must not fill the screen."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read_token_ids(value: object, source: str) -> tuple[int, ...]:
    """eos_token_id: null, an id or a list of ids. Raises ArtifactError."""
    ids: list[Any] = [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ArtifactError(f"{source}: eos_token_id={shorten(value)}: must be a token id or a list of them")
    return tuple(ids)
