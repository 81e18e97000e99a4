"""Spreads against what they estimate: Student's t by integration, the textbook error of a mean, coverage by drawing again."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from draftyard.reporting.spread import difference, jackknife, length, median_half_width, ratio, t_quantile


def t_probability(x: float, degrees: int, steps: int = 4000) -> float:
    """P(|T| <= x) of Student's t by Simpson's rule on its density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    width = x / steps
    weights = [1, *([4, 2] * (steps // 2))[: steps - 1], 1]
    return 2 * scale * width / 3 * sum(w * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i, w in enumerate(weights))


@pytest.mark.parametrize("degrees", [1, 2, 5, 17, 30, 31, 60, 499])
def test_the_quantile_leaves_five_percent_outside(degrees: int) -> None:
    assert t_probability(t_quantile(degrees), degrees) == pytest.approx(0.95, abs=2e-4)


def test_of_a_mean_it_is_the_textbook_interval() -> None:
    values = [1.0, 4.0, 2.5, 3.0, 8.0]
    found = jackknife([(1.0, value) for value in values], ratio)
    assert found == pytest.approx(2.776 * statistics.stdev(values) / math.sqrt(5))


def test_it_covers_the_true_length_of_new_prompts() -> None:
    """Prompts of two kinds and unlike many rounds, drawn 400 times: the interval holds the true length about 95 times in 100."""
    rng = random.Random(0)

    def prompt() -> tuple[float, float]:
        rounds, rate = rng.choice([(20, 0.2), (60, 0.5)])
        return rounds, sum(rng.random() < rate for _ in range(rounds))

    true = 1 + (20 * 0.2 + 60 * 0.5) / (20 + 60)
    covered = 0
    for _ in range(400):
        rows = [prompt() for _ in range(36)]
        half, found = jackknife(rows, length), length([sum(column) for column in zip(*rows, strict=True)])
        assert half is not None
        assert found is not None
        covered += abs(found - true) <= half
    assert 0.92 <= covered / 400 <= 0.98


def test_the_same_prompts_show_a_small_change_that_two_draws_would_hide() -> None:
    before = [(50.0, 10.0 + 3 * i) for i in range(10)]
    now = [(50.0, accepted + 1) for _, accepted in before]
    paired = jackknife([(*a, *b) for a, b in zip(now, before, strict=True)], difference(length))
    alone = jackknife(now, length)
    assert paired == pytest.approx(0, abs=1e-12)
    assert alone is not None
    assert alone > 0.1


@pytest.mark.parametrize("rows", [[], [(10.0, 3.0)], [(10.0, 3.0), (0.0, 0.0)]])
def test_what_cannot_be_estimated_is_none(rows: list[tuple[float, float]]) -> None:
    assert jackknife(rows, length) is None


@pytest.mark.parametrize(("count", "low", "high"), [(2, 1, 2), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15)])
def test_the_interval_of_a_median_is_the_table_s(count: int, low: int, high: int) -> None:
    """Ranks of the distribution-free 95% interval as tables of the sign test give them; below 6 values, the range."""
    values = [float(2**rank) for rank in range(1, count + 1)]
    random.Random(count).shuffle(values)
    assert median_half_width(values) == (2.0**high - 2.0**low) / 2


def test_one_value_has_no_spread() -> None:
    assert median_half_width([1.0]) is None
