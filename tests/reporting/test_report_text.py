"""Numbers and texts as a reader sees them; axes and lines of the charts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.reporting.svg import nice_ticks, thin
from draftyard.reporting.text import clean, percent, plain, shape, signed_percent, visible


@pytest.mark.parametrize(
    ("value", "shown"), [(1, "100%"), (0.99999, ">99.9%"), (0.975, "97.5%"), (0, "0%"), (None, "not recorded"), (float("nan"), "not recorded")]
)
def test_percent(value: object, shown: str) -> None:
    assert percent(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(39557376, "39,557,376"), (1.7782, "1.78"), (True, "not recorded"), ("3", "not recorded")])
def test_plain(value: object, shown: str) -> None:
    assert plain(value) == shown


@pytest.mark.parametrize(("value", "shown"), [(-0.00001, "0.0%"), (0.0123, "+1.2%"), (-0.2, "-20.0%"), (0.1, "+10.0%"), (0.0, "0.0%")])
def test_signed_percent(value: float, shown: str) -> None:
    assert signed_percent(value) == shown


def test_shape() -> None:
    assert (shape([1152, 576]), shape([]), shape(None)) == ("1152 × 576", "scalar", "absent")


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" the\n", "␣the⏎"), ("", "(empty)"), ("\u202egpj", "⟨U+202E⟩gpj"), ("\x1b[31m", "⟨U+001B⟩[31m"), ("\ud800", "⟨U+D800⟩"), ("日本", "日本")],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@settings(deadline=None)
@given(st.text(alphabet=st.characters()))
def test_clean_text_can_always_be_stored(text: str) -> None:
    clean(text).encode("utf-8")


@settings(deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_span_the_values(low: float, size: float) -> None:
    ticks = nice_ticks(low, low + size)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 12
    assert ticks[0] <= low + 1e-6 * size + 1e-9
    assert ticks[-1] >= low + size - 1e-6 * size - 1e-9


def test_ticks_of_a_constant() -> None:
    assert nice_ticks(1.0, 1.0)[0] == 1.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=1000))
def test_thinning_keeps_the_range(points: list[tuple[float, float]]) -> None:
    thinned = thin(points, 50)
    assert len(thinned) <= 50
    assert all(min(y for _, y in points) - 1e-6 <= y <= max(y for _, y in points) + 1e-6 for _, y in thinned)
