"""The split: proportional, stable, apart, cut evenly, and a function of content and seed only."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.prompts import Prompt
from draftyard.errors import DraftyardError
from draftyard.prompts.collect import Candidate
from draftyard.prompts.near import jaccard
from draftyard.prompts.select import Selection, proportional, select
from draftyard.prompts.text import content_key, rank, shingles

from .defaults import params

WORDS = [f"word{i}" for i in range(500)]


def make(sizes: dict[str, int]) -> list[Prompt]:
    """Prompts of random words, `sizes` of each category; a category's prompts do not depend on the others."""
    return [
        Prompt(id=f"{name}-{i}", category=name, system=None, turns=(" ".join(random.Random(f"{name}{i}").choices(WORDS, k=12)),))
        for name, size in sizes.items()
        for i in range(size)
    ]


def split(prompts: list[Prompt], **changes: Any) -> Selection:
    given = params(**changes)
    candidates = [Candidate(i, "s", p.category, rank(given.seed, content_key(p.system, p.turns))) for i, p in enumerate(prompts)]
    return select(candidates, prompts, given)


def names(candidates: list[Candidate], prompts: list[Prompt]) -> list[str]:
    return [prompts[candidate.index].id for candidate in candidates]


@pytest.mark.parametrize(
    ("sizes", "total", "quotas"),
    [
        ({"a": 60, "b": 30, "c": 10}, 10, {"a": 6, "b": 3, "c": 1}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": 50, "b": 49, "c": 1}, 10, {"a": 5, "b": 5, "c": 0}),
        ({"a": 2, "b": 1}, 9, {"a": 2, "b": 1}),
        ({}, 3, {}),
    ],
)
def test_largest_remainder_by_hand(sizes: dict[str, int], total: int, quotas: dict[str, int]) -> None:
    assert proportional(sizes, total) == quotas


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 2000))
def test_quotas_add_up_and_are_within_one_of_the_exact_share(sizes: dict[str, int], total: int) -> None:
    quotas = proportional(sizes, total)
    wanted = min(total, sum(sizes.values()))
    assert sum(quotas.values()) == wanted
    for name, size in sizes.items():
        assert 0 <= quotas[name] <= size
        assert abs(quotas[name] - size * wanted / sum(sizes.values())) < 1


def test_holdout_is_in_proportion_and_everything_is_somewhere_once() -> None:
    prompts = make({"a": 120, "b": 60, "c": 20})
    result = split(prompts, holdout_prompts=20)
    assert Counter(c.category for c in result.holdout) == {"a": 12, "b": 6, "c": 2}
    every = result.train + result.holdout + result.near_duplicates + result.cut
    assert sorted(c.index for c in every) == list(range(200))
    assert result.near_duplicates == result.cut == []


def test_order_mixes_the_categories() -> None:
    result = split(make({"a": 100, "b": 100}), holdout_prompts=50)
    for part in (result.train, result.holdout):
        changes = sum(left.category != right.category for left, right in pairwise(part))
        assert changes > len(part) // 4  # grouped: 1; mixed: about half
        assert [c.rank for c in part] == sorted(c.rank for c in part)


def test_independent_of_the_order_of_sources() -> None:
    prompts = make({"a": 50, "b": 50})
    shuffled = prompts.copy()
    random.Random(1).shuffle(shuffled)
    for part in ("train", "holdout"):
        assert names(getattr(split(prompts, holdout_prompts=10), part), prompts) == names(getattr(split(shuffled, holdout_prompts=10), part), shuffled)


def test_another_seed_is_another_split() -> None:
    prompts = make({"a": 200})
    one, two = (set(names(split(prompts, holdout_prompts=40, seed=seed).holdout, prompts)) for seed in (0, 1))
    assert len(one & two) < 25  # 8 by chance


def test_adding_a_prompt_hardly_moves_the_others() -> None:
    prompts = make({"a": 120, "b": 60, "c": 20})
    more = prompts + make({"d": 3})
    before, after = (set(names(split(p, holdout_prompts=20).holdout, p)) for p in (prompts, more))
    assert len(before - after) <= 2
    order_before = names(split(prompts, holdout_prompts=20).train, prompts)
    order_after = [name for name in names(split(more, holdout_prompts=20).train, more) if name in set(order_before)]
    assert [name for name in order_before if name in set(order_after)] == order_after


def test_max_prompts_cuts_evenly_and_leaves_the_holdout_alone() -> None:
    prompts = make({"a": 300, "b": 100, "c": 12})
    full = split(prompts, holdout_prompts=20)
    for total in (50, 100, 200):
        result = split(prompts, holdout_prompts=20, max_prompts=total)
        assert len(result.train) + len(result.holdout) == total
        assert result.holdout == full.holdout
        sizes = Counter(c.category for c in result.train)
        available = Counter(c.category for c in full.train)
        largest = max(sizes.values())
        assert all(largest - size <= 1 or size == available[name] for name, size in sizes.items())
        assert len(result.cut) == len(full.train) - len(result.train)


def test_category_weights_share_out_what_max_prompts_leaves() -> None:
    """Weights 1 : 0.5 : 0.25 of 140 are 80 : 40 : 20; a category that runs out leaves its share to the others."""
    prompts = make({"a": 300, "b": 300, "c": 300})
    weights = {"b": 0.5, "c": 0.25}
    sizes = Counter(c.category for c in split(prompts, holdout_prompts=20, max_prompts=160, category_weights=weights).train)
    assert sizes == {"a": 80, "b": 40, "c": 20}
    scarce = make({"a": 40, "b": 300, "c": 300})
    full = Counter(c.category for c in split(scarce, holdout_prompts=20).train)
    sizes = Counter(c.category for c in split(scarce, holdout_prompts=20, max_prompts=180, category_weights=weights).train)
    assert sizes["a"] == full["a"]
    assert abs(sizes["b"] - 2 * sizes["c"]) <= 2
    assert sum(sizes.values()) == 160


def test_a_weight_for_a_category_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The default params weigh the embedded prompts' categories; somebody's own prompts have others."""
    prompts = make({"a": 9, "b": 9})
    assert split(prompts, holdout_prompts=2, category_weights={"maths": 2.0}) == split(prompts, holdout_prompts=2)
    assert "prompts.category_weights.maths weighs nothing: no prompt has this category; there are a, b" in caplog.text


def test_a_larger_max_prompts_only_adds() -> None:
    prompts = make({"a": 300, "b": 100})
    small, large = (set(names(split(prompts, holdout_prompts=20, max_prompts=n).train, prompts)) for n in (100, 200))
    assert small < large


def test_near_duplicates_of_the_holdout_leave_train() -> None:
    """Each text twice, one word apart: no pair is divided, and the holdout itself holds no pair."""
    originals = make({"a": 100})
    twins = [Prompt(id=p.id + "-twin", category="b", system=None, turns=(p.turns[0] + " please",)) for p in originals]
    prompts = originals + twins
    result = split(prompts, holdout_prompts=30, near_duplicate_threshold=0.7)
    held = names(result.holdout, prompts)
    assert len(held) == 30
    assert len({name.removesuffix("-twin") for name in held}) == 30
    trained = {name.removesuffix("-twin") for name in names(result.train, prompts)}
    assert not trained & {name.removesuffix("-twin") for name in held}
    assert len(result.near_duplicates) == 30
    for c in result.holdout:
        assert all(jaccard(shingles(prompts[c.index].turns[0]), shingles(prompts[t.index].turns[0])) < 0.7 for t in result.train)


def test_a_conversation_is_near_its_own_opening() -> None:
    opening = "Explain how a heat pump warms a house in winter."
    prompts = [Prompt(id="long", category="x", system=None, turns=(opening, "And what does it cost to run over ten whole years?"))]
    prompts += [Prompt(id="short", category="x", system=None, turns=(opening,)), *make({"a": 60})]
    for seed in range(30):
        result = split(prompts, holdout_prompts=40, seed=seed)
        train, held = set(names(result.train, prompts)), set(names(result.holdout, prompts))
        assert not ({"long", "short"} & train and {"long", "short"} & held)
        assert not {"long", "short"} <= held


def test_a_shared_system_prompt_makes_no_near_duplicates() -> None:
    system = "You are a careful assistant who answers in full sentences. " * 20
    prompts = [Prompt(id=p.id, category=p.category, system=system, turns=p.turns) for p in make({"a": 40})]
    assert split(prompts, holdout_prompts=10).near_duplicates == []


def test_one_template_leaves_nothing_and_says_so() -> None:
    template = "Please write a long and detailed poem of at least ten verses about the lovely animal called"
    prompts = [Prompt(id=str(i), category="a", system=None, turns=(f"{template} animal{i}",)) for i in range(40)]
    with pytest.raises(DraftyardError) as error:
        split(prompts, holdout_prompts=5)
    assert str(error.value) == (
        "prompts.near_duplicate_threshold=0.5: no prompt is left to train on: 1 are held out, and all of the other 39 are near-duplicates of those; "
        "add prompts of other kinds, or raise the threshold"
    )


def test_a_category_of_copies_passes_its_quota_on() -> None:
    template = "Please write a long and detailed poem of at least ten verses about the lovely animal called"
    prompts = [Prompt(id=f"t{i}", category="template", system=None, turns=(f"{template} animal{i}",)) for i in range(50)] + make({"a": 50})
    result = split(prompts, holdout_prompts=20)
    assert Counter(c.category for c in result.holdout) == {"template": 1, "a": 19}
    assert Counter(c.category for c in result.near_duplicates) == {"template": 49}
