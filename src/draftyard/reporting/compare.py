"""reports/comparison.json: each figure of this build beside the baseline's, and whether the change exceeds the spread.

A change of a measured figure exceeds the spread when it is larger than the 95% half-width of the difference: over the prompts that
both builds share, when the baseline's per-prompt counts are known; else the root of the sum of both builds' squared half-widths.
Figures that are counted or computed have no spread: any change is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from draftyard.reporting.baseline import Baseline
from draftyard.reporting.samples import PromptCounts
from draftyard.reporting.spread import Statistic, difference, jackknife, length, ratio
from draftyard.reporting.text import clean, dig, mapping, number

EXACT: tuple[tuple[str, str, str, int], ...] = (
    ("equal_outputs", "identical greedy outputs", "percent", 1),
    ("coverage.holdout", "draft vocabulary coverage, holdout", "percent", 1),
    ("coverage.train", "draft vocabulary coverage, train", "percent", 1),
    ("canary.agreement", "canary agreement", "percent", 1),
    ("simulation_gap", "simulated against served", "percent", 0),
    ("acceptance_length.trained", "acceptance length in training", "length", 1),
    ("train.train_loss", "training loss, kept epoch", "decimal", -1),
    ("generate.looping_fraction", "answers that end in a loop", "percent", -1),
    ("num_speculative_tokens.served", "draft tokens per round", "count", 0),
    ("num_speculative_tokens.recommended", "recommended draft tokens per round", "count", 0),
    ("parameters.saved", "parameters saved", "count", 0),
    ("parameters.trainable", "parameters trained", "count", 0),
)
"""Key in metrics.json, label, how it is shown, and which way is better (1 up, -1 down, 0 neither)."""
TIMED = (
    ("speedup.median", "speed-up at batch 1, median"),
    ("tokens_per_s.draft", "tokens/s with the draft, median"),
    ("tokens_per_s.plain", "tokens/s plain, median"),
)
"""Key and label."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """before, now: None where a build has no such figure. spread: 95% half-width of the change; None: exact, or not known (`exact` says which).

    how: "prompts" (paired), "builds" (each build's own spread), "repeats", or "exact". better: 1, -1 or 0 as in EXACT.
    """

    key: str
    label: str
    show: str
    before: float | None
    now: float | None
    spread: float | None
    how: str
    better: int

    @property
    def change(self) -> float | None:
        """now - before."""
        return None if self.before is None or self.now is None else self.now - self.before

    @property
    def beyond(self) -> bool | None:
        """Whether the change exceeds the spread; None when it cannot be said."""
        if self.change is None:
            return None
        if self.how == "exact":
            return self.change != 0
        return None if self.spread is None else abs(self.change) > self.spread

    def to_json(self) -> dict[str, Any]:
        """All fields, with the change and whether it exceeds the spread."""
        return {**self.__dict__, "change": self.change, "beyond_spread": self.beyond}


def compare(metrics: dict[str, Any], samples: dict[str, list[PromptCounts]], baseline: Baseline) -> list[Change]:
    """Every figure that either build has: measured ones first."""
    changes = [_acceptance(metrics, samples, baseline, how, None) for how in ("served", "simulated")]
    how = "served" if number(dig(metrics, "acceptance_length", "served")) is not None else "simulated"
    names = sorted({*mapping(metrics.get("acceptance_by_category")), *mapping(baseline.metrics.get("acceptance_by_category"))})
    changes += [_acceptance(metrics, samples, baseline, how, name) for name in names]
    positions = len(mapping(dig(metrics, "acceptance_rate", how)))
    changes += [_rate(metrics, samples, baseline, how, position) for position in range(1, positions + 1)]
    for key, label in TIMED:
        spread = _of_builds(metrics, baseline, *key.split("."))
        changes.append(
            Change(key=key, label=label, show="decimal", before=_at(baseline.metrics, key), now=_at(metrics, key), spread=spread, how="repeats", better=1)
        )
    for key, label, show, better in EXACT:
        changes.append(
            Change(key=key, label=label, show=show, before=_at(baseline.metrics, key), now=_at(metrics, key), spread=None, how="exact", better=better)
        )
    return [change for change in changes if change.before is not None or change.now is not None]


def comparison(metrics: dict[str, Any], samples: dict[str, list[PromptCounts]], baseline: Baseline | None) -> dict[str, Any]:
    """The content of comparison.json."""
    if baseline is None:
        return {"baseline": None, "figures": []}
    origin = {"name": baseline.name, "origin": baseline.origin, "metrics_sha256": baseline.digest}
    return {"baseline": origin, "figures": [change.to_json() for change in compare(metrics, samples, baseline)]}


def _acceptance(metrics: dict[str, Any], samples: dict[str, list[PromptCounts]], baseline: Baseline, how: str, category: str | None) -> Change:
    keys = ("acceptance_length", how) if category is None else ("acceptance_by_category", category, how)
    label = f"acceptance length, {how}" if category is None else f"acceptance length, {category}, {how}"
    now, before = ([one for one in found.get(how, []) if category is None or one.category == category] for found in (samples, baseline.samples))
    spread, paired = _paired(now, before, length, lambda one: one.for_length)
    if not paired:
        spread = _of_builds(metrics, baseline, *keys)
    return _measured(".".join(keys), label, "length", dig(metrics, *keys), dig(baseline.metrics, *keys), spread, paired)


def _rate(metrics: dict[str, Any], samples: dict[str, list[PromptCounts]], baseline: Baseline, how: str, position: int) -> Change:
    keys = ("acceptance_rate", how, f"position_{position}")
    spread, paired = _paired(samples.get(how, []), baseline.samples.get(how, []), ratio, lambda one: one.for_rate(position))
    if not paired:
        spread = _of_builds(metrics, baseline, *keys)
    return _measured(
        ".".join(keys), f"acceptance rate at draft token {position}, {how}", "percent", dig(metrics, *keys), dig(baseline.metrics, *keys), spread, paired
    )


def _measured(key: str, label: str, show: str, now: Any, before: Any, spread: float | None, paired: bool) -> Change:
    how = "prompts" if paired else "builds"
    return Change(key=clean(key), label=clean(label), show=show, before=number(before), now=number(now), spread=spread, how=how, better=1)


def _paired(now: list[PromptCounts], before: list[PromptCounts], statistic: Statistic, counts: Any) -> tuple[float | None, bool]:
    """Half-width of the change over shared prompts, and whether both builds measured exactly the same ones."""
    if not now or [one.key for one in now] != [one.key for one in before]:
        return None, False
    return jackknife([(*counts(a), *counts(b)) for a, b in zip(now, before, strict=True)], difference(statistic)), True


def _of_builds(metrics: dict[str, Any], baseline: Baseline, *keys: str) -> float | None:
    """Both builds' own half-widths together. A baseline from before spreads were kept is taken to have this build's."""
    own, other = number(dig(metrics, "spread", *keys)), number(dig(baseline.metrics, "spread", *keys))
    if own is None:
        return None
    return math.hypot(own, own if other is None else other)


def _at(metrics: dict[str, Any], key: str) -> float | None:
    return number(dig(metrics, *key.split(".")))
