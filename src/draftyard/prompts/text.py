"""When two prompts are the same: normalised text, content keys, and word shingles."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from itertools import groupby

from draftyard.artifacts.files import canonical_json

SHINGLE_WORDS = 5
MAX_COMBINING_RUN = 64
"""Longer runs of combining marks make Unicode normalisation quadratic, and are no writing."""

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
# Thai to Tibetan, Myanmar, Khmer, kana, Chinese characters: written without spaces, so each character counts as a word.
_UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def normalise(text: str) -> str:
    """Text without differences that no reader sees: invisible characters, compatibility forms (NFKC), case, white space."""
    folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def has_combining_run(text: str) -> bool:
    """Whether more than MAX_COMBINING_RUN combining marks follow one another."""
    if text.isascii():
        return False
    return any(marks and sum(1 for _ in run) > MAX_COMBINING_RUN for marks, run in groupby(text, lambda c: unicodedata.combining(c) != 0))


def content_key(system: str | None, turns: tuple[str, ...]) -> str:
    """SHA-256 (hex) of the normalised system prompt and turns: equal for exact duplicates."""
    normalised = [normalise(system or ""), *map(normalise, turns)]
    return hashlib.sha256(canonical_json(normalised)).hexdigest()


def rank(seed: int, key: str) -> bytes:
    """Where a prompt stands in the build's random order (16 bytes): depends on the seed and its own content only."""
    return hashlib.sha256(f"{seed}/{key}".encode()).digest()[:16]


def shingles(text: str) -> frozenset[str]:
    """The word 5-grams of a text; the whole text when it has fewer words, or none."""
    normalised = normalise(text)
    words = _WORD.findall(normalised)
    if len(words) < SHINGLE_WORDS:
        return frozenset((" ".join(words) or normalised,))
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in range(len(words) - SHINGLE_WORDS + 1))


def views(turns: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """The shingle sets by which a prompt is compared: all its turns, and its first turn when that is long enough to mean something alone.

    The system prompt is left out: data sets share one over thousands of unrelated prompts.
    """
    whole = shingles("\n".join(turns))
    if len(turns) == 1 or len(_WORD.findall(normalise(turns[0]))) < SHINGLE_WORDS:
        return (whole,)
    return (whole, shingles(turns[0]))
