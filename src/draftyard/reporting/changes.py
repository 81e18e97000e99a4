"""The comparison with the baseline, in words and signs, for the page and the markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from draftyard.reporting.text import clean, dig, number, plain, rows

Kind = Literal["better", "worse", "changed", "within", "same", "unknown"]
WORDS: dict[Kind, str] = {
    "better": "better, beyond the spread",
    "worse": "worse, beyond the spread",
    "changed": "changed",
    "within": "within the spread",
    "same": "the same",
    "unknown": "spread not known",
}
ORDER: tuple[Kind, ...] = ("worse", "better", "changed", "unknown", "within", "same")
SPREAD_OF = {"prompts": "same prompts", "builds": "both builds", "repeats": "repeats"}
EXPLANATION = (
    "Spread: the 95% half-width of the change. Acceptance: over the prompts, leaving out one at a time; prompt by prompt where both measured the same ones. "
    "Speed: of the median over interleaved repeats. A counted or computed figure has none. It does not hold what another train.seed would change."
)


@dataclass(frozen=True)
class ChangeRow:
    """One figure, as text. spread: "" for an exact figure."""

    label: str
    before: str
    now: str
    change: str
    spread: str
    kind: Kind

    @property
    def words(self) -> str:
        """What the change means."""
        return self.kind if not self.spread and self.kind in ("better", "worse") else WORDS[self.kind]


def change_rows(comparison: dict[str, Any]) -> list[ChangeRow]:
    """The figures of comparison.json, those beyond the spread first."""
    found = [_row(figure) for figure in rows(comparison.get("figures"))]
    return sorted(found, key=lambda row: ORDER.index(row.kind))


def baseline_name(comparison: dict[str, Any]) -> str | None:
    """What to call the baseline, or None without one."""
    name = dig(comparison, "baseline", "name")
    return None if name is None else clean(name)


def summary(comparison: dict[str, Any]) -> str:
    """How many figures changed, in a sentence."""
    kinds: list[str] = [row.kind for row in change_rows(comparison)]
    beyond = [f"{kinds.count(kind)} {word}" for kind, word in (("better", "better"), ("worse", "worse"), ("changed", "neither")) if kinds.count(kind)]
    said = f"{sum(kinds.count(kind) for kind in ('better', 'worse', 'changed'))} of {len(kinds)} figures changed by more than the spread"
    return f"Against {baseline_name(comparison)}, {said}{' (' + ', '.join(beyond) + ')' if beyond else ''}."


def figure_change(comparison: dict[str, Any], key: str) -> ChangeRow | None:
    """The row of one figure, by its key in metrics.json."""
    return next((_row(figure) for figure in rows(comparison.get("figures")) if figure.get("key") == key), None)


def _row(figure: dict[str, Any]) -> ChangeRow:
    show = _SHOWN.get(str(figure.get("show")), _decimal)
    before, now, change, spread = (number(figure.get(key)) for key in ("before", "now", "change", "spread"))
    half = (
        "" if figure.get("how") == "exact" else f"± {show(spread, True)} ({SPREAD_OF.get(str(figure.get('how')), '')})" if spread is not None else "not known"
    )
    signed = "–" if change is None else f"{'+' if change > 0 else '−' if change < 0 else ''}{show(abs(change), True)}"
    return ChangeRow(clean(figure.get("label")), _or_dash(before, show), _or_dash(now, show), signed, half, _kind(figure, change))


def _kind(figure: dict[str, Any], change: float | None) -> Kind:
    beyond, better = figure.get("beyond_spread"), number(figure.get("better")) or 0
    if change is None or beyond is None:
        return "same" if change == 0 else "unknown"
    if not beyond:
        return "same" if change == 0 else "within"
    return "changed" if not better else "better" if change * better > 0 else "worse"


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "–" if value is None else show(value)


def _percent(value: float, change: bool = False) -> str:
    return f"{100 * value:.1f}{' points' if change else '%'}"


def _length(value: float, change: bool = False) -> str:
    return f"{value:.3f}"


def _decimal(value: float, change: bool = False) -> str:
    return f"{value:,.2f}"


def _count(value: float, change: bool = False) -> str:
    return plain(int(value)) if value == int(value) else plain(value)


_SHOWN: dict[str, Callable[..., str]] = {"percent": _percent, "length": _length, "decimal": _decimal, "count": _count}
