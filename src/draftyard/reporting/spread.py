"""How far a figure would move for no reason: 95% half-widths over prompts (acceptance) and over interleaved repeats (speed).

A repeated build gives the same acceptance to the last digit on one machine, so the question is not what another run, but what
another draw of as many prompts would give. A change within the spread is one that other prompts could have shown as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Counts = Sequence[float]
Statistic = Callable[[Counts], float | None]

T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""97.5% quantile of Student's t for 1..30 degrees of freedom; beyond, 1.96 + 2.5 / degrees (within 0.001)."""


def t_quantile(degrees: int) -> float:
    """97.5% quantile of Student's t."""
    return T_QUANTILES[degrees - 1] if degrees <= len(T_QUANTILES) else 1.96 + 2.5 / degrees


def jackknife(rows: Sequence[Counts], statistic: Statistic) -> float | None:
    """95% half-width of `statistic` over prompts, by leaving out one prompt at a time (Efron and Stein 1981).

    rows: one vector of counts per prompt; statistic: of the vector of their sums. Rounds of one prompt are alike, so the prompt is
    the unit, not the round. None with fewer than two prompts, or where the statistic does not exist without one of them.
    """
    n = len(rows)
    if n < 2:
        return None
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    without = [statistic([total - own for total, own in zip(sums, row, strict=True)]) for row in rows]
    found = [value for value in without if value is not None]
    if len(found) < n:
        return None
    mean = math.fsum(found) / n
    variance = (n - 1) / n * math.fsum((value - mean) ** 2 for value in found)
    return t_quantile(n - 1) * math.sqrt(variance)


def length(counts: Counts) -> float | None:
    """Acceptance length of (rounds, accepted tokens)."""
    rounds, accepted = counts[0], counts[1]
    return 1 + accepted / rounds if rounds else None


def ratio(counts: Counts) -> float | None:
    """Rate of (rounds, rounds that accepted so many)."""
    return counts[1] / counts[0] if counts[0] else None


def difference(statistic: Statistic) -> Statistic:
    """`statistic` of the first half of the counts minus that of the second half: two builds on the same prompts."""

    def apply(counts: Counts) -> float | None:
        half = len(counts) // 2
        now, before = statistic(counts[:half]), statistic(counts[half:])
        return None if now is None or before is None else now - before

    return apply


def median_half_width(values: Sequence[float]) -> float | None:
    """Half the length of a 95% interval of the median, from order statistics (no assumption on the distribution).

    With fewer than six values, for which no such interval exists, half the range. None with fewer than two.
    """
    n = len(values)
    if n < 2:
        return None
    ordered = sorted(values)
    rank, tail = 0, 0.5**n
    while tail <= 0.025:
        rank += 1
        tail += math.comb(n, rank) * 0.5**n
    cut = max(rank - 1, 0)
    return (ordered[n - 1 - cut] - ordered[cut]) / 2
