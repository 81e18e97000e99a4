"""The index finds exactly what comparing all pairs finds, and stays fast on templates."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.prompts.near import NearDuplicateIndex, ShingleFrequencies, jaccard
from draftyard.prompts.text import shingles

sets = st.frozensets(st.sampled_from("abcdefghij"), min_size=1)


def test_jaccard_by_hand() -> None:
    assert jaccard(frozenset("abc"), frozenset("bcd")) == 0.5
    assert jaccard(frozenset("ab"), frozenset("cd")) == 0
    assert jaccard(frozenset(), frozenset()) == 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(sets) | st.tuples(sets, sets), max_size=12),
    st.tuples(sets) | st.tuples(sets, sets),
    st.sampled_from([0.1, 1 / 3, 0.5, 0.6, 2 / 3, 0.8, 1.0]),
    st.booleans(),
)
def test_same_answer_as_all_pairs(indexed, query, threshold: float, informed: bool) -> None:
    frequencies = ShingleFrequencies(view for views in indexed for view in views) if informed else None
    index = NearDuplicateIndex(threshold, frequencies)
    for owner, views in enumerate(indexed):
        index.add(owner, *views)
    near = [owner for owner, views in enumerate(indexed) for view in views for q in query if len(view & q) >= threshold * len(view | q) - 1e-9]
    assert index.find(*query) == (near[0] if near else None)


@pytest.mark.parametrize(("changed", "found"), [(0, True), (1, True), (10, False)])
def test_a_changed_word_in_a_long_text(changed: int, found: bool) -> None:
    words = [f"w{i}" for i in range(60)]  # 56 shingles; a changed word in the middle touches 5: 51 / 61
    index = NearDuplicateIndex(0.8)
    index.add(7, shingles(" ".join(words)))
    for i in range(changed):
        words[5 + 5 * i] = "other"
    assert index.find(shingles(" ".join(words))) == (7 if found else None)


def test_short_texts_match_only_when_their_words_are_the_same() -> None:
    index = NearDuplicateIndex(0.5)
    index.add(1, shingles("Why is that?"))
    assert index.find(shingles("why is THAT")) == 1
    assert index.find(shingles("Why is this?")) is None


def test_near_linear_on_a_template() -> None:
    """A template that all texts share does not make each query meet every text."""
    rng = random.Random(0)
    template = " ".join(f"t{i}" for i in range(30))

    def text() -> str:
        return template + " " + " ".join(str(rng.randrange(10**6)) for _ in range(40))

    held = [shingles(text()) for _ in range(1000)]
    index = NearDuplicateIndex(0.7, ShingleFrequencies(held))
    for owner, view in enumerate(held):
        index.add(owner, view)
    queries = [shingles(text()) for _ in range(3000)]
    started = time.monotonic()
    assert [index.find(query) for query in queries] == [None] * 3000
    assert time.monotonic() - started < 10  # all pairs: 3 million set intersections
    assert [index.find(view) for view in held] == list(range(1000))
