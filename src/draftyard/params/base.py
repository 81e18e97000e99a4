"""How a mapping from YAML becomes a frozen dataclass: types, unknown keys, missing keys."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from draftyard.errors import ParamError

T = TypeVar("T")


def build(cls: type[T], group: str, values: object) -> T:
    """Build dataclass `cls` from the mapping `values` of params group `group`.

    Raises:
        ParamError: `values` is no mapping, a key is unknown or missing, or a value has another type
            than its field. Ranges and relations are the dataclass's own `__post_init__`.
    """
    if not isinstance(values, Mapping):
        raise ParamError(group, values, "must be a mapping of keys to values")
    hints = typing.get_type_hints(cls)
    fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            meant = f" (is {near[0]} meant?)" if near else ""
            raise ParamError(f"{group}.{key}", values[key], f"unknown key{meant}; known keys: {', '.join(fields)}")
    for key in fields:
        if key not in values:
            raise ParamError(f"{group}.{key}", None, "missing; every key is written out, none has a default")
    return cls(**{key: coerce(f"{group}.{key}", values[key], hints[key]) for key in fields})


def coerce(key: str, value: Any, hint: Any) -> Any:
    """Check `value` against the type `hint` (int, float, bool, str, dict, tuple, Literal, dataclass, X | None).

    A whole number is accepted for a float; a bool is never accepted for a number; NaN and infinity never.
    """
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        if value is None and type(None) in get_args(hint):
            return None
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return coerce(key, value, inner)
    if origin is Literal:
        choices = get_args(hint)
        if value not in choices:
            raise ParamError(key, value, f"must be one of {', '.join(map(str, choices))}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ParamError(key, value, "must be a list")
        return tuple(coerce(f"{key}[{i}]", item, get_args(hint)[0]) for i, item in enumerate(value))
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise ParamError(key, value, "must be a mapping")
        plain = _plain(key, dict(value))
        inner = get_args(hint)[1] if get_args(hint) else Any
        return plain if inner is Any else {name: coerce(f"{key}.{name}", item, inner) for name, item in plain.items()}
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), key, value)
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParamError(key, value, "must be a number")
        try:
            number = float(value)
        except OverflowError:  # a whole number of more than 308 digits
            number = math.inf
        if not math.isfinite(number):
            raise ParamError(key, value, "must be finite")
        return number
    names = {int: "a whole number", str: "a text", bool: "true or false"}
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ParamError(key, value, f"must be {names[hint]}")
    return value


def _plain(key: str, values: dict[Any, Any]) -> dict[str, Any]:
    """`values`, which must be JSON: it is digested, and written into lineages."""
    for name in values:
        if not isinstance(name, str):
            raise ParamError(f"{key}.{name}", values[name], "its key must be a text")
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ParamError(key, values, f"must hold texts, numbers, true, false, null, lists and mappings only ({error}); put a date in quotes") from None
    return values


def require_below(directory: str, key: str, value: str | None) -> None:
    """Raise ParamError unless `value` is null or a path below `directory`, which a stage declares, so that the build notices a change."""
    if value is not None:
        parts, inside = PurePosixPath(value).parts, PurePosixPath(directory).parts
        require(parts[: len(inside)] == inside and len(parts) > len(inside) and ".." not in parts, key, value, f"must lie below {directory}/, or be null")


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise ParamError(key, value, rule) unless `condition` holds."""
    if not condition:
        raise ParamError(key, value, rule)
