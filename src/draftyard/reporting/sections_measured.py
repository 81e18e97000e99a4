"""Report sections of what `verify` measured: acceptance, speed, equality of outputs, acceptance along the context."""

from __future__ import annotations

from typing import Any

from draftyard.reporting import metrics as m
from draftyard.reporting.aligned import aligned
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Markup, join, table, tag
from draftyard.reporting.svg import NARROW, Series, bar_chart, dot_strip, legend, line_chart
from draftyard.reporting.text import clean, dig, mapping, number, numbers, percent, plain, rows, signed_percent
from draftyard.reporting.verdict import near_tie_limit

SERVED, SIMULATED, TRAINED = ("served", "s1"), ("simulated", "s2"), ("in training", "s3")
MAX_RANGES = 5
"""Bins whose range fits below the bar."""
DEFINITION = (
    "Acceptance length = 1 + accepted draft tokens / draft rounds, in vLLM's counting; 1.00 means no draft token was ever accepted. "
    "The bar at position i is the fraction of rounds that accepted at least i draft tokens, so the length is 1 plus the sum of the bars. "
    "Served: counted by vLLM. Simulated: the same rounds replayed on the verifier's own held-out text. In training: the simulation at the epoch that was kept."
)


def acceptance(record: BuildRecord, metrics: dict[str, Any]) -> list[Markup]:
    """Overall and per category, per position; by number of draft tokens."""
    serving = record.serving if record.measured else {}
    parts = [tag("p", DEFINITION, class_="note")]
    trained = m.trained_rates(record)
    epoch = mapping(m.best_epoch(record.stages.get("train", {})).get("holdout_categories"))
    kinds = [(SERVED, serving.get("overall")), (SIMULATED, record.simulation)]
    shown = [kind for kind, measure in kinds if m.acceptance_rates(measure)]
    if not shown:
        return [*parts, tag("p", "Acceptance was neither simulated nor served.")]
    top = max(
        [
            *trained,
            *(rate for name in m.categories(record) for source in (serving, record.simulation) for rate in m.acceptance_rates(dig(source, "categories", name))),
            *(rate for measure in epoch.values() for rate in m.acceptance_rates(measure)),
            *m.acceptance_rates(record.simulation),
            *m.acceptance_rates(serving.get("overall")),
        ]
    )
    names = [*shown, *([TRAINED] if trained else [])]
    parts.append(legend([Series(*name) for name in names]))
    overall = _position_bars("All prompts", serving.get("overall"), record.simulation, top, trained)
    charts = [
        _position_bars(name, dig(serving, "categories", name), dig(record.simulation, "categories", name), top, m.acceptance_rates(epoch.get(name)))
        for name in m.categories(record)
    ]
    parts.append(tag("div", overall, charts, class_="figures panels"))
    by_k = _by_k(record.simulation)
    far = tag("div", tag("h3", "How far to draft"), by_k, tag("p", _k_words(record.simulation), class_="note")) if by_k else None
    parts.append(tag("div", tag("div", _category_table(record, serving, metrics, epoch)), far, class_="split"))
    return parts


def context(record: BuildRecord) -> list[Markup]:
    """Acceptance length by where the round happened: in the whole context, and in the answer."""
    charts = [
        chart
        for chart in (
            _by_place(record.simulation, "by_context", "In the context", "tokens before the round; below: rounds"),
            _by_place(record.simulation, "by_position", "In the answer", "answer tokens before the round; below: rounds"),
        )
        if chart
    ]
    if not charts:
        return [tag("p", "Acceptance by position was not simulated.")]
    said = (
        "Simulated acceptance length by how much text stands before the round. A fall along the context points at a draft that sees less of it than "
        "the verifier (a sliding window, RoPE scaling, max_position_embeddings); a place with few rounds says little."
    )
    return [tag("p", said), tag("div", charts, class_="figures")]


def speed(record: BuildRecord, metrics: dict[str, Any]) -> list[Markup]:
    """Tokens per second with and without the draft, every repeat shown."""
    measured = record.serving.get("speed") if record.measured else None
    plain_speed, draft_speed, speedups = (numbers(dig(measured, key)) for key in ("plain_tokens_per_s", "draft_tokens_per_s", "speedups"))
    if not plain_speed or not draft_speed:
        return [tag("p", "Speed was not measured: ", _why_not(record))]
    said = (
        f"{plain(dig(measured, 'speedup_median'))}× plain decoding in the median repeat, {plain(dig(measured, 'speedup_min'))}× in the worst and "
        f"{plain(dig(measured, 'speedup_max'))}× in the best; batch {plain(dig(measured, 'batch'))}, {plain(dig(measured, 'prompts'))} prompts, "
        f"{len(speedups)} interleaved pairs (plain, draft, plain, draft, ...)."
    )
    half = metrics["spread"]["speedup"]["median"]
    if half is not None:
        said += f" The median is known to ± {half:.2f} from these pairs."
    seconds = [Series("with the draft", "s1", draft_speed), Series("plain decoding", "s2", plain_speed)]
    alt = f"Tokens per second: with the draft {_range(draft_speed)}, plain {_range(plain_speed)}"
    ratio = dot_strip(
        "Speed-up",
        f"Speed-up of each pair: {_range(speedups)} times",
        [Series("with the draft / plain", "s1", speedups)],
        x_label="times plain decoding; dotted: no gain",
        mark_x=1.0,
    )
    figures = tag("div", dot_strip("Tokens per second, one dot per run", alt, seconds, x_label="tokens/s"), ratio if speedups else None, class_="figures")
    body = [[f"{i}", f"{p:.2f}", f"{d:.2f}", f"{s:.2f}×"] for i, (p, d, s) in enumerate(zip(plain_speed, draft_speed, speedups, strict=False), start=1)]
    repeats = tag(
        "details",
        tag("summary", f"Every pair: {len(body)}"),
        table(["pair", "plain, tokens/s", "with the draft, tokens/s", "speed-up"], body, class_="figures-right"),
    )
    return [tag("p", said), figures, repeats]


def equality(record: BuildRecord) -> list[Markup]:
    """Whether greedy outputs are token for token the same; each divergence with both texts."""
    found = record.serving.get("equality") if record.measured else None
    prompts, equal = number(dig(found, "prompts")), number(dig(found, "equal"))
    if prompts is None or equal is None:
        return [tag("p", "Outputs were not compared: ", _why_not(record))]
    parts = [tag("p", f"Greedy outputs with and without the draft are identical, token for token, for {plain(equal, 0)} of {plain(prompts, 0)} prompts.")]
    divergences = rows(dig(found, "divergences"))
    if divergences:
        limit = near_tie_limit(record)
        parts.append(tag("p", f"A gap of at most {plain(limit)} between the two best logits is a tie that rounding decides; it is not the draft's doing."))
    for row in divergences:
        gap = number(row.get("logit_gap"))
        kind = "gap unknown" if gap is None else f"logit gap {gap:.4g}: {'a tie' if abs(gap) <= near_tie_limit(record) else 'no tie'}"
        parts.append(tag("h3", f"{row.get('id')}, differs from output token {row.get('position')} on ({kind})"))
        parts.append(aligned(str(row.get("shared_text", "")), str(row.get("plain_text", "")), str(row.get("draft_text", ""))))
    missing = int(prompts - equal) - len(divergences)
    if missing > 0:
        parts.append(tag("p", f"{missing} more divergences were counted but not recorded."))
    return parts


def _position_bars(name: str, served: Any, simulated: Any, top: float, trained: list[float] | None = None) -> Markup:
    kinds = [(SERVED, m.acceptance_rates(served)), (SIMULATED, m.acceptance_rates(simulated)), (TRAINED, trained or [])]
    series = [Series(*kind, rates) for kind, rates in kinds if rates]
    count = max((len(one.values) for one in series), default=0)
    lengths = [
        f"{plain(m.acceptance_length(measure))} {kind[0]}" for kind, measure in ((SERVED, served), (SIMULATED, simulated)) if m.acceptance_length(measure)
    ]
    alt = f"{name}: acceptance length {', '.join(lengths) or 'not measured'}. " + "; ".join(
        f"{one.name} per position {', '.join(percent(v) for v in one.values)}" for one in series
    )
    title = join(name, " ", tag("small", " · ".join(lengths)))
    return bar_chart(title, alt, [str(i) for i in range(1, count + 1)], series, x_label="draft token", top=top, height=140, width=NARROW)


def _category_table(record: BuildRecord, serving: dict[str, Any], metrics: dict[str, Any], epoch: dict[str, Any]) -> Markup:
    how = "served" if serving else "simulated"
    spreads = metrics["spread"]

    def line(name: str, served: Any, simulated: Any, trained: float | None, half: float | None) -> list[Any]:
        a, b = m.acceptance_length(served), m.acceptance_length(simulated)
        gap = signed_percent((b - a) / a) if a and b is not None else "–"
        count = dig(served, "prompts") if a is not None else dig(simulated, "prompts")
        return [name, plain(count), *(plain(x) if x is not None else "–" for x in (a, b, trained)), f"± {half:.2f}" if half is not None else "–", gap]

    body = [line("all", serving.get("overall"), record.simulation, metrics["acceptance_length"]["trained"], spreads["acceptance_length"][how])]
    for name in m.categories(record):
        served, simulated = dig(serving, "categories", name), dig(record.simulation, "categories", name)
        body.append(line(name, served, simulated, m.acceptance_length(epoch.get(name)), dig(spreads, "acceptance_by_category", clean(name), how)))
    return table(
        ["category", "prompts", "served", "simulated", "in training", "spread", "gap"],
        body,
        class_="figures-right total stack pairs",
        caption=f"Acceptance length by category of the held-out prompts. Spread: 95% over the prompts ({how}); gap: simulated to served.",
    )


def _by_k(simulation: dict[str, Any]) -> Markup | None:
    found = [row for row in rows(simulation.get("by_k")) if number(row.get("k")) is not None]
    if not found:
        return None
    lengths = [(float(row["k"]), length) for row in found if (length := m.acceptance_length(row)) is not None]
    speeds = [(float(row["k"]), ratio) for row in found if (ratio := number(row.get("relative_speed"))) is not None]
    series = [Series("acceptance length", "s1", points=lengths), Series("estimated speed-up", "s2", points=speeds)]
    alt = (
        "; ".join(f"k={k:.0f}: acceptance length {length:.2f}" for k, length in lengths)
        + ". Estimated speed-up "
        + ", ".join(f"k={k:.0f}: {v:.2f}" for k, v in speeds)
    )
    return line_chart(
        "Draft tokens per round (simulated)",
        alt,
        [one for one in series if one.points],
        x_label="k, draft tokens per round",
        y_low=1.0,
        markers=True,
        mark_x=number(simulation.get("recommended_k")),
    )


def _by_place(simulation: dict[str, Any], key: str, title: str, x_label: str) -> Markup | None:
    found = [(row, length) for row in rows(simulation.get(key)) if (length := m.acceptance_length(row)) is not None]
    if not found:
        return None
    labels = [f"{_edge(row.get('from'))}–{_edge(row.get('to'))}" for row, _ in found]
    alt = f"Acceptance length, {title.lower()}, by tokens before the round: "
    alt += ", ".join(f"{label} {length:.2f} over {plain(row.get('rounds'))} rounds" for label, (row, length) in zip(labels, found, strict=True))
    series = [Series("simulated", "s2", [length for _, length in found])]
    return bar_chart(
        title,
        alt,
        labels if len(labels) <= MAX_RANGES else [f"≥{_edge(row.get('from'))}" for row, _ in found],
        series,
        x_label=x_label,
        top=max(length for _, length in found),
        as_percent=False,
        base=1.0,
        height=190,
        notes=[plain(row.get("rounds")) if number(row.get("rounds")) is not None else "" for row, _ in found],
    )


def _edge(value: Any) -> str:
    """A bin's edge, tokens; from 1024 on in units of 1024."""
    edge = number(value) or 0
    return f"{edge / 1024:g}k" if edge >= 1024 else f"{edge:g}"


def _k_words(simulation: dict[str, Any]) -> str:
    recommended = number(simulation.get("recommended_k"))
    if recommended is None:
        return "No number of draft tokens is recommended: the cost model has no figures."
    return f"The dotted line marks k = {recommended:.0f}, the fastest by the cost model {_model_words(simulation.get('cost_model'))}."


def _model_words(model: Any) -> str:
    if not isinstance(model, dict):
        return ""
    return (
        "("
        + ", ".join(
            f"{key.replace('_', ' ')} {f'{value:,}' if isinstance(value, int) else f'{value:.3g}'}"
            for key, value in sorted(model.items())
            if number(value) is not None
        )
        + ")"
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if values else "not measured"


def _why_not(record: BuildRecord) -> str:
    if record.measured:
        return "the record of the serving run does not hold it."
    return f"{record.serving.get('reason') or 'reports/verify/serving.json is missing'}."
