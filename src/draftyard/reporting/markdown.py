"""reports/report.md: the report in short, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from draftyard.params.report import ReportParams
from draftyard.reporting import metrics as m
from draftyard.reporting.changes import EXPLANATION, change_rows, summary
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.text import clean, dig, percent, plain, rows, shape, short_digest, signed_percent, visible
from draftyard.reporting.verdict import Verdict

SIGNS = {"pass": "✅", "fail": "❌", "skipped": "➖", "info": "·", "warn": "⚠️"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~&@:$-])")


def escape(text: Any) -> str:
    """`text` on one line, every character that Markdown or HTML could act on as an entity."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match.group(1))};", visible(text).replace("␣", " "))


def render_markdown(record: BuildRecord, metrics: dict[str, Any], verdict: Verdict, params: ReportParams) -> str:
    """The report as Markdown. The same records give the same bytes."""
    blocks = [f"# {_say(params.title)}", f"{SIGNS[verdict.status]} **{_say(verdict.sentence)}**"]
    for proof in verdict.proofs:
        lines = [f"- {SIGNS[line.status]} {_say(line.text)}{f' ({_say(line.hint)})' if line.hint else ''}" for line in proof.evidence]
        blocks.append("\n".join([f"### {SIGNS[proof.status]} {_say(proof.title)}: {proof.status}", "", *lines]))
    if record.comparison.get("baseline"):
        blocks.append(_changes(record))
    blocks += [_acceptance(record, metrics), _figures(record, metrics), _tensors(record)]
    uncovered = rows(dig(record.stages, "vocab", "uncovered"))[: params.uncovered_tokens]
    if uncovered:
        blocks.append(
            "Most frequent tokens outside the draft vocabulary: " + ", ".join(f"{escape(row.get('text'))} ({plain(row.get('count'))}×)" for row in uncovered)
        )
    chain = [f"{kind} {short_digest(lineage.digest)}" for kind, lineage in record.lineages.items()]
    if chain:
        blocks.append("Lineage: " + " → ".join(_say(link) for link in chain))
    return "\n\n".join(blocks) + "\n"


def _acceptance(record: BuildRecord, metrics: dict[str, Any]) -> str:
    lengths, serving = metrics["acceptance_length"], record.serving if record.measured else {}

    def line(name: str, values: dict[str, Any], served: Any, simulated: Any) -> list[str]:
        rates = [" / ".join(percent(rate, 0) for rate in m.acceptance_rates(measure)) or "–" for measure in (served, simulated)]
        return [_say(name), _figure(values["served"]), _figure(values["simulated"]), *rates]

    body = [line("all", lengths, serving.get("overall"), record.simulation)]
    for name in m.categories(record):
        values = metrics["acceptance_by_category"][clean(name)]
        body.append(line(name, values, dig(serving, "categories", name), dig(record.simulation, "categories", name)))
    said = "Acceptance length = 1 + accepted draft tokens / draft rounds; per position: the fraction of rounds that accepted at least that many."
    return "## Acceptance\n\n" + said + "\n\n" + _table(["category", "served", "simulated", "per position, served", "per position, simulated"], body)


def _changes(record: BuildRecord) -> str:
    found = change_rows(record.comparison)
    lines = {
        moved: [
            [_say(row.label), _say(row.before), _say(row.now), _say(row.change), _say(row.spread or "exact"), row.words]
            for row in found
            if (row.kind not in ("same", "within")) is moved
        ]
        for moved in (True, False)
    }
    headers = ["figure", "before", "now", "change", "spread of the change", "reading"]
    parts = ["## Against the baseline", _say(summary(record.comparison))]
    if lines[True]:
        parts.append(_table(headers, lines[True]))
    if lines[False]:
        parts.append(f"<details><summary>Within the spread or the same: {len(lines[False])} figures</summary>\n\n{_table(headers, lines[False])}\n\n</details>")
    baseline = record.comparison["baseline"]
    parts.append(_say(f"Baseline: {dig(baseline, 'origin')}; metrics {short_digest(dig(baseline, 'metrics_sha256'))}. {EXPLANATION}"))
    return "\n\n".join(parts)


def _figures(record: BuildRecord, metrics: dict[str, Any]) -> str:
    speed, equality, gap = metrics["speedup"], record.serving.get("equality") if record.measured else None, metrics["simulation_gap"]
    speedup = f"{plain(speed['median'])}× ({plain(speed['min'])}× to {plain(speed['max'])}×)" if speed["median"] is not None else "not measured"
    equal = f"{plain(dig(equality, 'equal'))} of {plain(dig(equality, 'prompts'))} prompts" if metrics["equal_outputs"] is not None else "not compared"
    body = [
        ["speed-up at batch 1, median (range)", speedup],
        ["identical greedy output", equal],
        ["simulated against served", signed_percent(gap, 2) if gap is not None else "not comparable"],
        ["recommended draft tokens per round", plain(metrics["num_speculative_tokens"]["recommended"])],
        ["draft vocabulary coverage, train / holdout", f"{percent(metrics['coverage']['train'], 2)} / {percent(metrics['coverage']['holdout'], 2)}"],
        ["canary agreement", percent(metrics["canary"]["agreement"], 2)],
        ["parameters saved / total / trainable", " / ".join(plain(metrics["parameters"][key]) for key in ("saved", "total", "trainable"))],
        ["epoch kept", plain(metrics["train"]["best_epoch"])],
    ]
    return "## Figures\n\n" + _table(["", ""], body)


def _tensors(record: BuildRecord) -> str:
    tensors = rows(record.static.get("tensors"))
    head = f"head_dim {plain(record.static.get('head_dim'))}, hidden / heads {_say(record.static.get('hidden_per_head'))}"
    wrong = [row for row in tensors if row.get("shape") != row.get("expected_shape")]
    reference = record.static.get("reference")
    body = [
        [
            escape(row.get("name")),
            shape(row.get("expected_shape")),
            shape(row.get("shape")),
            *([shape(row.get("reference_shape"))] if reference else []),
            _say(row.get("dtype") or "–"),
        ]
        for row in tensors
    ]
    said = f"{head}; {len(tensors)} tensors, {len(wrong)} not as expected{f'; reference: {_say(reference)}' if reference else ''}."
    listed = _table(["tensor", "expected", "found", *(["reference"] if reference else []), "dtype"], body)
    return f"## Tensors\n\n{said}\n\n<details><summary>All tensors</summary>\n\n{listed}\n\n</details>"


def _table(headers: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    names = list(headers)
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in (names, ["---"] * len(names), *body)])


def _figure(value: Any) -> str:
    return plain(value) if value is not None else "–"


def _say(text: Any) -> str:
    """Our own sentence, which may quote a stranger: only what Markdown or HTML would act on is made harmless."""
    return re.sub(r"([\\`*_\[\]<>|&@~])", lambda match: f"&#{ord(match.group(1))};", visible(text).replace("␣", " "))
