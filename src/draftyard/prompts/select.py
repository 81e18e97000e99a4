"""Splitting the pool: a holdout in proportion to the categories, and a train split that shares nothing with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from draftyard.artifacts.prompts import Prompt
from draftyard.errors import DraftyardError
from draftyard.params.prompts import PromptsParams
from draftyard.prompts.collect import Candidate
from draftyard.prompts.near import NearDuplicateIndex, ShingleFrequencies
from draftyard.prompts.text import views

log = logging.getLogger(__name__)

FREQUENCY_SAMPLE = 5000


@dataclass(frozen=True)
class Selection:
    """What became of each candidate; the two splits in the build's random order, categories mixed.

    near_duplicates: too like a holdout prompt for either split. cut: beyond max_prompts.
    """

    train: list[Candidate]
    holdout: list[Candidate]
    near_duplicates: list[Candidate]
    cut: list[Candidate]


def select(candidates: list[Candidate], prompts: Sequence[Prompt], params: PromptsParams) -> Selection:
    """Split the pool, where `prompts[candidate.index]` is a candidate's prompt. A function of contents, categories and params only.

    The holdout is chosen first: in each category the lowest ranks, without prompts near one already chosen. Then every
    prompt near a holdout prompt is kept out of train, and max_prompts cuts train, in proportion to the categories' weights as far
    as they have prompts. So the holdout depends neither on max_prompts nor on what is removed from train.

    Raises:
        DraftyardError: nothing is left to train on.
    """
    ordered = sorted(candidates, key=lambda candidate: candidate.rank)
    sample = islice(ordered, FREQUENCY_SAMPLE)
    frequencies = ShingleFrequencies(view for candidate in sample for view in views(prompts[candidate.index].turns))
    index = NearDuplicateIndex(params.near_duplicate_threshold, frequencies)
    by_category: dict[str, list[Candidate]] = {}
    for candidate in ordered:
        by_category.setdefault(candidate.category, []).append(candidate)

    for name in sorted(params.category_weights.keys() - by_category.keys()):
        log.warning("prompts.category_weights.%s weighs nothing: no prompt has this category; there are %s", name, ", ".join(sorted(by_category)))

    holdout = _choose_holdout(by_category, prompts, params.holdout_prompts, index)
    chosen = {candidate.index for candidate in holdout}
    limit = None if params.max_prompts is None else params.max_prompts - len(holdout)
    train: list[Candidate] = []
    near_duplicates: list[Candidate] = []
    cut: list[Candidate] = []
    free = {name: [c for c in group if c.index not in chosen] for name, group in by_category.items()}
    for candidate in _in_turn(free, params.category_weights, index, prompts, near_duplicates):
        (train if limit is None or len(train) < limit else cut).append(candidate)
    if not train:
        raise DraftyardError(
            f"prompts.near_duplicate_threshold={params.near_duplicate_threshold}: no prompt is left to train on: {len(holdout)} are held out, and all of "
            f"the other {len(near_duplicates)} are near-duplicates of those; add prompts of other kinds, or raise the threshold"
        )
    return Selection(*(sorted(group, key=lambda candidate: candidate.rank) for group in (train, holdout, near_duplicates, cut)))


def proportional(sizes: dict[str, int], total: int) -> dict[str, int]:
    """Share `total` over groups in proportion to their sizes: whole numbers by largest remainder, ties by name; at most the sizes."""
    pool = sum(sizes.values())
    total = min(total, pool)
    quotas = {name: size * total // pool for name, size in sizes.items()} if pool else dict(sizes)
    by_remainder = sorted(sizes, key=lambda name: (-(sizes[name] * total % pool), name)) if pool else []
    for name in by_remainder[: total - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _choose_holdout(by_category: dict[str, list[Candidate]], prompts: Sequence[Prompt], wanted: int, index: NearDuplicateIndex) -> list[Candidate]:
    """Fill each category's quota in order of rank, then what is missing from all categories. Adds the chosen to `index`."""
    quotas = proportional({name: len(group) for name, group in by_category.items()}, wanted)
    holdout: list[Candidate] = []
    passed: list[Candidate] = []

    def take(group: list[Candidate], quota: int) -> list[Candidate]:
        """Hold out `quota` prompts of `group`; returns the ones not looked at."""
        goal = len(holdout) + quota
        for position, candidate in enumerate(group):
            if len(holdout) == goal:
                return group[position:]
            near = views(prompts[candidate.index].turns)
            if index.find(*near) is None:
                index.add(candidate.index, *near)
                holdout.append(candidate)
        return []

    for name in sorted(by_category):
        passed += take(by_category[name], quotas[name])
    if len(holdout) < wanted:
        take(sorted(passed, key=lambda candidate: candidate.rank), wanted - len(holdout))
    return holdout


def _in_turn(
    groups: dict[str, list[Candidate]], weights: dict[str, float], index: NearDuplicateIndex, prompts: Sequence[Prompt], near_duplicates: list[Candidate]
) -> list[Candidate]:
    """The candidates that are near nothing in `index`, the categories in turn as often as their weights say, by rank; the others go to `near_duplicates`."""
    places: list[tuple[float, str, Candidate]] = []
    for name, group in groups.items():
        clean = 0
        for candidate in group:
            if index.find(*views(prompts[candidate.index].turns)) is not None:
                near_duplicates.append(candidate)
            else:
                clean += 1
                places.append((clean / weights.get(name, 1.0), name, candidate))
    return [candidate for _, _, candidate in sorted(places, key=lambda place: place[:2])]
