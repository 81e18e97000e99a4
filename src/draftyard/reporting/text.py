"""Numbers and strangers' texts, made fit to be read."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

ABSENT = "not recorded"
_PICTURES = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "␣"}


def dig(values: Any, *keys: str) -> Any:
    """`values[keys[0]][keys[1]]...`, or None as soon as a step is missing or no mapping."""
    for key in keys:
        if not isinstance(values, Mapping):
            return None
        values = values.get(key)
    return values


def number(value: Any) -> float | None:
    """`value` as a float when it is a finite number (a bool is none), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def numbers(values: Any) -> list[float]:
    """The finite numbers of a list; anything else gives an empty list."""
    return [found for value in values if (found := number(value)) is not None] if isinstance(values, list) else []


def rows(values: Any) -> list[dict[str, Any]]:
    """The mappings of a list; anything else gives an empty list."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def mapping(values: Any) -> dict[str, Any]:
    """`values` when it is a mapping; anything else gives an empty one."""
    return values if isinstance(values, dict) else {}


def plain(value: Any, digits: int = 2) -> str:
    """A number with `digits` decimals and thousands separators; whole numbers without decimals; "not recorded" for none."""
    found = number(value)
    if found is None:
        return ABSENT
    return f"{int(found):,}" if isinstance(value, int) else f"{found:,.{digits}f}"


def percent(value: Any, digits: int = 1) -> str:
    """A fraction as a percentage. 100% is written only for exactly 1, so that one failure in thousands stays visible."""
    found = number(value)
    if found is None:
        return ABSENT
    shown = f"{100 * found:.{digits}f}"
    if found < 1 and float(shown) >= 100:
        return f">{100 - 10**-digits:.{digits}f}%"
    return f"{shown.removesuffix('.' + '0' * digits) if digits and found in (0, 1) else shown}%"


def signed_percent(value: float, digits: int = 1) -> str:
    """A relative change as "+1.2%"; what rounds to nothing is "0.0%"."""
    shown = f"{100 * value:+.{digits}f}%"
    return shown if shown.strip("+-0.%") else shown[1:]


def shape(value: Any) -> str:
    """A tensor shape as "1152 × 576"; "scalar" for []; "absent" for none."""
    if not isinstance(value, list):
        return "absent"
    return " × ".join(f"{size}" for size in value) if value else "scalar"


def short_digest(value: Any) -> str:
    """The first 12 characters of a digest."""
    return str(value)[:12]


def clean(text: Any) -> str:
    """`text` without what cannot be stored or would act on the page: lone surrogates, control and bidi characters.

    Line breaks and tabs stay; every other control or format character becomes its code point in brackets.
    """
    return "".join(char if char in "\n\t" or not _acts(char) else f"⟨U+{ord(char):04X}⟩" for char in str(text))


def visible(text: Any) -> str:
    """A token's text on one line, with its white space drawn: " the\\n" as "␣the⏎"; an empty one as "(empty)"."""
    return "".join(_PICTURES.get(char, char) for char in clean(text)) or "(empty)"


def common_prefix(left: str, right: str) -> int:
    """Number of leading characters that two texts share."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def _acts(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp") and char != "\u200d"
