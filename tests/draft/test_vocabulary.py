"""Choosing the draft vocabulary, against a brute force that sorts tokens one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.draft.vocabulary import choose, count_tokens, coverage, uncovered
from draftyard.errors import ArtifactError, ParamError


def brute_force(tokens: list[int], vocab_size: int, size: int, forced: set[int]) -> list[int]:
    """The chosen tokens: forced ones, then by falling count, then by rising id."""
    counts = Counter(tokens)
    chosen = {i for i in forced if 0 <= i < vocab_size}
    for token in sorted(range(vocab_size), key=lambda i: (-counts[i], i)):
        if len(chosen) < size:
            chosen.add(token)
    return sorted(chosen)


@settings(deadline=None)
@given(st.data())
def test_the_choice_equals_the_brute_force(data: st.DataObject) -> None:
    vocab_size = data.draw(st.integers(1, 30))
    texts = data.draw(st.lists(st.lists(st.integers(0, vocab_size - 1), max_size=20), max_size=5))
    forced = data.draw(st.sets(st.integers(-2, vocab_size + 2), max_size=4))
    inside = {i for i in forced if 0 <= i < vocab_size}
    size = data.draw(st.integers(max(1, len(inside)), vocab_size))
    flat = [token for text in texts for token in text]
    counts = count_tokens(texts, vocab_size)
    assert counts.tolist() == [flat.count(i) for i in range(vocab_size)]
    made = choose(counts, size, forced)
    expected = brute_force(flat, vocab_size, size, forced)
    assert made.target_ids.tolist() == expected
    assert [i + offset for i, offset in enumerate(made.d2t.tolist())] == expected
    assert np.flatnonzero(made.t2d).tolist() == expected
    assert (made.d2t.dtype, made.t2d.dtype) == (np.int64, np.bool_)
    within = sum(token in set(expected) for token in flat)
    assert coverage(counts, made.t2d) == pytest.approx(within / len(flat) if flat else 1.0)
    outside = Counter(token for token in flat if token not in set(expected))
    assert uncovered(counts, made.t2d, 3) == sorted(outside.items(), key=lambda pair: (-pair[1], pair[0]))[:3]


def test_ties_and_tokens_never_seen_go_by_the_smaller_id() -> None:
    counts = np.array([0, 2, 0, 2, 5, 0])
    assert choose(counts, 2, []).target_ids.tolist() == [1, 4]
    assert choose(counts, 4, []).target_ids.tolist() == [0, 1, 3, 4]


def test_a_forced_token_displaces_the_rarest_one() -> None:
    counts = np.array([9, 8, 7, 0, 6])
    assert choose(counts, 3, [3]).target_ids.tolist() == [0, 1, 3]
    assert choose(counts, 3, [3, 3, 0]).target_ids.tolist() == [0, 1, 3]
    assert choose(counts, 1, [3]).target_ids.tolist() == [3]


def test_the_whole_vocabulary_needs_no_offsets() -> None:
    for made in (choose(np.array([1, 0, 3]), None, [2]), choose(np.array([1, 0, 3]), 3, [2])):
        assert made.d2t.tolist() == [0, 0, 0]
        assert made.t2d.all()


@pytest.mark.parametrize(
    ("size", "forced", "message"),
    [
        (7, [], "draft.vocab_size=7: is larger than the verifier's vocabulary of 6 tokens"),
        (2, [0, 1, 5], "draft.vocab_size=2: is smaller than the 3 special tokens that are always included"),
        (0, [], "draft.vocab_size=0: must be positive"),
        (-3, [], "draft.vocab_size=-3: must be positive"),
    ],
)
def test_sizes_that_cannot_be(size: int, forced: list[int], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        choose(np.ones(6, dtype=np.int64), size, forced)


@pytest.mark.parametrize("token", [6, -1, 1 << 40])
def test_a_token_outside_the_vocabulary_is_another_verifiers(token: int) -> None:
    with pytest.raises(ArtifactError, match=f"token id {token} lies outside the verifier's vocabulary of 6 tokens"):
        count_tokens([[1, 2], [], [3, token]], 6)


def test_nothing_counted() -> None:
    counts = count_tokens([], 4)
    assert counts.tolist() == [0, 0, 0, 0]
    made = choose(counts, 2, [])
    assert coverage(counts, made.t2d) == 1.0
    assert uncovered(counts, made.t2d, 5) == []
    assert uncovered(np.array([0, 0, 4, 5]), made.t2d, 0) == []


def test_as_tensors() -> None:
    d2t, t2d = choose(np.array([0, 5, 0, 5]), 2, []).tensors()
    assert torch.equal(d2t, torch.tensor([1, 2]))
    assert torch.equal(t2d, torch.tensor([False, True, False, True]))
