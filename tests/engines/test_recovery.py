"""Restarts within bounds, and the search for the sample that the engine fails on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.engines.recovery import Recovery
from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError


class Engine:
    """Squares numbers; fails on a batch with a poisonous one, on one that is too large, and on the first `sick` batches."""

    def __init__(self, poisonous: frozenset[int] = frozenset(), sick: int = 0, largest: int = 1000) -> None:
        self.poisonous, self.sick, self.largest = poisonous, sick, largest
        self.runs: list[list[int]] = []

    def run(self, items: list[int]) -> list[int]:
        self.runs.append(items)
        self.sick -= 1
        if self.sick >= 0 or self.poisonous & set(items) or len(items) > self.largest:
            raise EngineFailure("the engine was killed by SIGKILL; the last lines of x.log:\n  out of memory")
        return [item * item for item in items]

    def failures_in_a_row(self) -> int:
        """The longest run of batches that failed."""
        longest = now = 0
        for items in self.runs:
            now = now + 1 if self.poisonous & set(items) else 0
            longest = max(longest, now)
        return longest


def recover(engine: Engine, items: list[int], *, restarts: int = 5, allowed: int = 0) -> tuple[list[int], list[str]]:
    return Recovery(restarts, allowed, "generate.max_skipped_fraction=0.1").run(items, engine.run, lambda item: f"s{item}")


def test_an_engine_that_works_is_asked_once() -> None:
    engine = Engine()
    assert recover(engine, [1, 2, 3]) == ([1, 4, 9], [])
    assert engine.runs == [[1, 2, 3]]


@pytest.mark.parametrize("sick", [1, 2, 3, 4, 5])
def test_a_failure_that_passes_costs_repetitions_and_nothing_else(sick: int) -> None:
    """From the third on parts are tried, and the whole again: the result comes from one run over everything."""
    engine = Engine(sick=sick)
    assert recover(engine, [1, 2, 3, 4]) == ([1, 4, 9, 16], [])
    assert engine.runs[-1] == [1, 2, 3, 4]


def test_an_engine_that_always_fails_is_given_up_with_the_samples_and_its_last_lines() -> None:
    engine = Engine(sick=100)
    message = r"(?s)failed 4 times in a row, engine.max_restarts=3 in runtime.yaml allows 3; last on 8 samples \(s8, s9, .*out of memory"
    with pytest.raises(EngineFailure, match=message):
        recover(engine, list(range(16)), restarts=3)
    assert len(engine.runs) == 4


def test_no_restart_may_be_allowed() -> None:
    with pytest.raises(EngineFailure, match="failed 1 times in a row"):
        recover(Engine(sick=1), [1], restarts=0)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.integers(0, 199))
def test_one_poisonous_sample_is_found_in_logarithmic_time(count: int, position: int) -> None:
    position %= count
    engine = Engine(poisonous=frozenset({position}))
    items = list(range(count))
    left = [item for item in items if item != position]
    assert recover(engine, items, allowed=1) == ([item * item for item in left], [f"s{position}"])
    assert engine.runs[-1] == left
    assert len(engine.runs) <= 4 + 2 * count.bit_length()
    assert engine.failures_in_a_row() <= 3


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 64), st.sets(st.integers(0, 63), max_size=6))
def test_all_poisonous_samples_are_found(count: int, poisonous: set[int]) -> None:
    engine = Engine(poisonous=frozenset(poisonous))
    result, names = recover(engine, list(range(count)), restarts=1000, allowed=6)
    assert sorted(names) == sorted(f"s{item}" for item in poisonous if item < count)
    assert result == [item * item for item in range(count) if item not in poisonous]


def test_more_poisonous_samples_than_allowed_end_the_stage_over_all_shards() -> None:
    engine = Engine(poisonous=frozenset({3, 12}))
    recovery = Recovery(5, 1, "generate.max_skipped_fraction=0.1")
    assert recovery.run(list(range(8)), engine.run, str)[1] == ["3"]
    with pytest.raises(DraftyardError, match=r"fails on 2 samples, each by itself \(3, 12\); generate.max_skipped_fraction=0.1 allows 1"):
        recovery.run(list(range(8, 16)), engine.run, str)


def test_samples_that_fail_only_together_are_a_matter_of_the_batch() -> None:
    with pytest.raises(
        EngineFailure, match=r"(?s)fails on 4 samples together \(s1, s2, s3, s4\), but on none of them alone: lower engine.max_num_seqs.*out of memory"
    ):
        recover(Engine(largest=2), [1, 2, 3, 4], allowed=9)
