"""Per-prompt counts, from which spreads are estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftyard.reporting.spread import jackknife, length, ratio
from draftyard.reporting.text import clean, number, numbers, rows


@dataclass(frozen=True)
class PromptCounts:
    """key: id and sample number. accepted: rounds that accepted at least i draft tokens, i = 1..k."""

    key: tuple[str, int]
    category: str
    rounds: float
    accepted: tuple[float, ...]

    @property
    def for_length(self) -> tuple[float, float]:
        """(rounds, accepted tokens)."""
        return self.rounds, sum(self.accepted)

    def for_rate(self, position: int) -> tuple[float, float]:
        """(rounds, rounds that accepted at least `position` draft tokens)."""
        return self.rounds, self.accepted[position - 1] if position <= len(self.accepted) else 0.0


def prompt_counts(measure: Any) -> list[PromptCounts]:
    """The "samples" of simulation.json or serving.json, in a fixed order; empty for a record made before they were kept."""
    found = []
    for row in rows(measure.get("samples") if isinstance(measure, dict) else None):
        rounds = number(row.get("rounds"))
        if rounds is not None:
            key = (clean(row.get("id")), int(number(row.get("sample")) or 0))
            found.append(PromptCounts(key, clean(row.get("category")), rounds, tuple(numbers(row.get("accepted")))))
    return sorted(found, key=lambda counts: counts.key)


def length_spread(counts: list[PromptCounts]) -> float | None:
    """95% half-width of the acceptance length over these prompts."""
    return jackknife([one.for_length for one in counts], length)


def rate_spread(counts: list[PromptCounts], position: int) -> float | None:
    """95% half-width of the acceptance rate at `position`."""
    return jackknife([one.for_rate(position) for one in counts], ratio)
