"""Near-duplicates by Jaccard similarity of shingle sets: exact, and near-linear in the number of texts."""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable

BUCKETS = 1 << 18
TOLERANCE = 1e-9


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """|left & right| / |left | right|, in 0..1; 1 for two empty sets."""
    shared = len(left & right)
    union = len(left) + len(right) - shared
    return shared / union if union else 1.0


class ShingleFrequencies:
    """Roughly how many texts hold a shingle, in fixed memory (1 MiB of hashed counters)."""

    def __init__(self, sample: Iterable[frozenset[str]] = ()) -> None:
        self._counts = array("I", bytes(BUCKETS * array("I").itemsize))
        for shingles in sample:
            for shingle in shingles:
                self._counts[zlib.crc32(shingle.encode()) % BUCKETS] += 1

    def rarest_first(self, shingles: frozenset[str]) -> list[str]:
        """The shingles in order of frequency, then of text."""
        return sorted(shingles, key=lambda shingle: (self._counts[zlib.crc32(shingle.encode()) % BUCKETS], shingle))


class NearDuplicateIndex:
    """Finds indexed sets whose Jaccard similarity with a query reaches `threshold`.

    A set y with J(x, y) >= t shares at least ceil(t |y|) shingles with x, so any |y| - ceil(t |y|) + 1 of its shingles
    hold a shared one (the prefix filter of Bayardo, Ma and Srikant, "Scaling up all pairs similarity search", 2007). Only so many
    are indexed, the rarest, so that the phrases of a template do not lead to every text made from it. Frequencies
    decide the speed, never the answer.
    """

    def __init__(self, threshold: float, frequencies: ShingleFrequencies | None = None) -> None:
        self._threshold = threshold
        self._frequencies = frequencies or ShingleFrequencies()
        self._sets: list[tuple[int, frozenset[str]]] = []
        self._postings: dict[str, list[int]] = {}

    def add(self, owner: int, *views: frozenset[str]) -> None:
        """Index the sets of `owner`."""
        for shingles in views:
            number = len(self._sets)
            self._sets.append((owner, shingles))
            indexed = len(shingles) - math.ceil(self._threshold * len(shingles) - TOLERANCE) + 1
            for shingle in self._frequencies.rarest_first(shingles)[:indexed]:
                self._postings.setdefault(shingle, []).append(number)

    def find(self, *views: frozenset[str]) -> int | None:
        """The owner of an indexed set that is near one of `views`: the one added first; None when there is none."""
        best: int | None = None
        for shingles in views:
            candidates = {number for shingle in shingles for number in self._postings.get(shingle, ())}
            for number in sorted(candidates):
                if best is not None and number >= best:
                    break
                other = self._sets[number][1]
                smaller, larger = sorted((len(shingles), len(other)))
                if smaller >= self._threshold * larger - TOLERANCE and jaccard(shingles, other) >= self._threshold - TOLERANCE:
                    best = number
        return None if best is None else self._sets[best][0]
