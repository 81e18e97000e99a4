"""Charts as inline SVG: a few functions, no library. Series differ by shape (fill, outline, dash, marker) as well as by colour.

Each is drawn for a width of about 340 CSS pixels, the width of a phone (NARROW: one of several panels), and scales with its column. Coordinates are rounded, so
the same figures give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftyard.reporting.markup import Child, Markup, tag

WIDTH, NARROW = 340, 260
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 18, 34
MAX_POINTS = 240


@dataclass(frozen=True)
class Series:
    """name: for the legend. style: a class of the style sheet (s1..s4). values: one per group, or (x, y) points."""

    name: str
    style: str
    values: Sequence[float | None] = ()
    points: Sequence[tuple[float, float]] = ()


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round values that span [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        high = low + 1
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def thin(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """At most `limit` points, each the mean of a run of neighbours."""
    size = max(1, math.ceil(len(points) / limit))
    runs = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]


def legend(series: Sequence[Series], *, lines: bool = False) -> Markup:
    """Names of the series with a drawn sample each: a filled box, or with `lines` a piece of the line."""

    def sample(style: str) -> Markup:
        if not lines:
            return tag("i", class_=f"swatch {style}", aria_hidden="true")
        return tag("svg", tag("line", x1=0, x2=26, y1=5, y2=5, class_=f"line {style}"), viewBox="0 0 26 10", class_="key", aria_hidden="true")

    return tag("p", [tag("span", sample(one.style), " ", one.name) for one in series], class_="legend")


def bar_chart(
    title: Child,
    alt: str,
    groups: Sequence[str],
    series: Sequence[Series],
    *,
    x_label: str,
    top: float,
    as_percent: bool = True,
    base: float = 0.0,
    height: int = 170,
    width: int = WIDTH,
    notes: Sequence[str] = (),
) -> Markup:
    """Grouped vertical bars from `base` to `top`; a bar carries its value where there is room. A None is written as "–".

    notes: a second line below each group, for instance how many rounds it stands for.
    """
    ticks = nice_ticks(base, top, 4)
    floor = height - BOTTOM - (12 if notes else 0)
    scale = _scale(ticks[0], ticks[-1], floor, TOP)
    step = (width - LEFT - RIGHT) / max(1, len(groups))
    bar = min(34.0, step * 0.8 / max(1, len(series)))
    show = _percent if as_percent else _decimal
    parts = [_horizontal_grid(ticks, scale, _percent if as_percent else _short, width)]
    for g, group in enumerate(groups):
        middle = LEFT + step * (g + 0.5)
        for s, one in enumerate(series):
            x = middle + bar * (s - len(series) / 2)
            value = one.values[g] if g < len(one.values) else None
            if value is None:
                parts.append(_text(x + bar / 2, floor - 4, "–", "middle", "value"))
                continue
            y = scale(min(value, ticks[-1]))
            parts.append(tag("rect", x=_c(x + 1), y=_c(y), width=_c(bar - 2), height=_c(max(0.0, floor - y)), class_=f"bar {one.style}"))
            if bar >= 17 or (s == 0 and bar * len(series) >= 17):
                parts.append(_text(x + bar / 2, y - 3, show(value) if bar >= 22 else show(value).rstrip("%"), "middle", "value"))
        parts.append(_text(middle, floor + 13, group, "middle"))
        parts += [_text(middle, floor + 25, notes[g], "middle", "aside")] if g < len(notes) else []
    parts.append(_text((LEFT + width) / 2, height - 6, x_label, "middle", "label"))
    return _figure(title, alt, height, parts, width=width)


def line_chart(
    title: str,
    alt: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_low: float | None = None,
    markers: bool = False,
    whole_x: bool = True,
    mark_x: float | None = None,
    height: int = 190,
) -> Markup:
    """Lines over a common axis, with a legend when there are several. mark_x draws a vertical line there (a chosen epoch, a recommended k)."""
    points = [point for one in series for point in one.points]
    if not points:
        return _figure(title, alt, height, [_text(WIDTH / 2, height / 2, "no points", "middle", "label")])
    low, high = min(y for _, y in points), max(y for _, y in points)
    y_ticks = nice_ticks(low if y_low is None else min(y_low, low), high)
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    x_ticks = [tick for tick in nice_ticks(x_low, x_high, 6) if x_low - 1e-9 <= tick <= x_high + 1e-9 and (not whole_x or tick == int(tick))] or [x_low]
    across = _scale(x_low, x_high if x_high > x_low else x_low + 1, LEFT + 14, WIDTH - RIGHT - 10)
    up = _scale(y_ticks[0], y_ticks[-1], height - BOTTOM, TOP)
    parts = [_horizontal_grid(y_ticks, up, _short)]
    parts += [_text(across(tick), height - BOTTOM + 13, f"{tick:,.0f}" if whole_x else f"{tick:g}", "middle") for tick in x_ticks]
    if mark_x is not None and x_low <= mark_x <= x_high:
        parts.append(tag("line", x1=_c(across(mark_x)), x2=_c(across(mark_x)), y1=TOP, y2=height - BOTTOM, class_="mark"))
    for one in series:
        path = " ".join(f"{_c(across(x))},{_c(up(y))}" for x, y in thin(one.points))
        parts.append(tag("polyline", points=path, class_=f"line {one.style}"))
        if markers:
            parts += [tag("circle", cx=_c(across(x)), cy=_c(up(y)), r=3, class_=f"dot {one.style}") for x, y in one.points]
            parts += [_text(across(x), up(y) - 7, _decimal(y), "middle", "value") for x, y in one.points if len(one.points) <= 10]
    parts.append(_text((LEFT + WIDTH) / 2, height - 6, x_label, "middle", "label"))
    return _figure(title, alt, height, parts, legend(series, lines=True) if len(series) > 1 else None)


def dot_strip(title: str, alt: str, series: Sequence[Series], *, x_label: str, mark_x: float | None = None) -> Markup:
    """One row per series: every value as a dot, their span as a bar, on an axis from 0. mark_x draws a vertical line there."""
    height = TOP + 40 * len(series) + BOTTOM
    values = [value for one in series for value in one.values if value is not None]
    ticks = nice_ticks(0.0, max(values, default=1.0), 5)
    across = _scale(0.0, ticks[-1], LEFT, WIDTH - RIGHT - 8)
    parts = [tag("line", x1=_c(across(tick)), x2=_c(across(tick)), y1=TOP, y2=height - BOTTOM, class_="grid") for tick in ticks]
    parts += [_text(across(tick), height - BOTTOM + 13, f"{tick:g}", "middle") for tick in ticks]
    if mark_x is not None and mark_x <= ticks[-1]:
        parts.append(tag("line", x1=_c(across(mark_x)), x2=_c(across(mark_x)), y1=TOP, y2=height - BOTTOM, class_="mark"))
    for row, one in enumerate(series):
        y = TOP + 40 * row + 24
        found = sorted(value for value in one.values if value is not None)
        parts.append(_text(LEFT + 3, y - 12, one.name, "start"))
        if found:
            parts.append(tag("line", x1=_c(across(found[0])), x2=_c(across(found[-1])), y1=y, y2=y, class_=f"span {one.style}"))
            parts += [tag("circle", cx=_c(across(value)), cy=y, r=4.5, class_=f"dot {one.style}") for value in found]
    parts.append(_text((LEFT + WIDTH) / 2, height - 6, x_label, "middle", "label"))
    return _figure(title, alt, height, parts)


def meter(alt: str, value: float, style: str = "s1") -> Markup:
    """A fraction 0..1 as a filled track."""
    filled = max(0.0, min(1.0, value)) * WIDTH
    parts = [tag("rect", x=0, y=0, width=WIDTH, height=14, class_="track"), tag("rect", x=0, y=0, width=_c(filled), height=14, class_=f"bar {style}")]
    return tag("svg", tag("title", alt), parts, viewBox=f"0 0 {WIDTH} 14", role="img", aria_label=alt, class_="meter", preserveAspectRatio="none")


def _figure(title: Child, alt: str, height: int, parts: list[Markup], below: Markup | None = None, width: int = WIDTH) -> Markup:
    drawing = tag("svg", tag("title", alt), parts, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt)
    return tag("figure", tag("figcaption", title), drawing, below)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _horizontal_grid(ticks: list[float], scale: Callable[[float], float], show: Callable[[float], str], width: int = WIDTH) -> Markup:
    lines = [tag("line", x1=LEFT, x2=width - RIGHT, y1=_c(scale(tick)), y2=_c(scale(tick)), class_="grid") for tick in ticks]
    return tag("g", lines, [_text(LEFT - 5, scale(tick) + 3.5, show(tick), "end") for tick in ticks])


def _text(x: float, y: float, text: str, anchor: str, style: str | None = None) -> Markup:
    return tag("text", text, x=_c(x), y=_c(y), text_anchor=anchor, class_=style)


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _decimal(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _short(value: float) -> str:
    return f"{value:,g}"


def _c(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
