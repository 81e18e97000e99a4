"""The head of the page: the tiles, the gate's lines, the change against the baseline, the three proofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftyard.gate import GateLine
from draftyard.reporting.changes import EXPLANATION, ChangeRow, change_rows, figure_change, summary
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Child, Markup, join, table, tag
from draftyard.reporting.sections_draft import badge
from draftyard.reporting.text import clean, dig, percent, plain
from draftyard.reporting.verdict import Proof, Verdict

GATE_ORDER = {"red": 0, "skipped": 1, "green": 2}
SIGNS = {"better": "▲", "worse": "▼", "changed": "◆", "within": "≈", "same": "=", "unknown": "?"}
TONES = {"better": "pass", "worse": "fail", "changed": "info", "within": "skipped", "same": "skipped", "unknown": "warn"}


def gate(lines: Sequence[GateLine]) -> list[Markup]:
    """Every line of the gate, red first, each red one with what to do."""
    if not lines:
        return [tag("p", "The gate has not been asked.")]
    body = [
        [
            join(badge(line.status), " ", tag("span", line.id.replace("_", " "), class_="name")),
            line.found,
            join(line.threshold, tag("div", line.hint, class_="hint") if line.status == "red" else None),
        ]
        for line in sorted(lines, key=lambda line: GATE_ORDER[line.status])
    ]
    return [tag("p", gate_words(lines)), table(["line", "found", "required"], body, class_="stack gate")]


def gate_words(lines: Sequence[GateLine]) -> str:
    """The gate in a sentence."""
    red, skipped = ([line.id.replace("_", " ") for line in lines if line.status == status] for status in ("red", "skipped"))
    more = f"; skipped, as gate.require_serving allows: {', '.join(skipped)}" if skipped else ""
    if red:
        return f"{len(red)} of {len(lines)} lines are red: {', '.join(red)}. The build fails{more}."
    return f"No line is red: {len(lines) - len(skipped)} of {len(lines)} are green{more}."


def changes(record: BuildRecord) -> list[Markup]:
    """Each figure against the baseline; what did not change is folded."""
    found = change_rows(record.comparison)
    moved = [row for row in found if row.kind not in ("same", "within")]
    rest = [row for row in found if row.kind in ("same", "within")]
    origin = dig(record.comparison, "baseline")
    parts: list[Markup] = [tag("p", summary(record.comparison))]
    if moved:
        parts.append(_change_table(moved))
    if rest:
        parts.append(
            tag(
                "details", tag("summary", f"Within the spread or the same: {len(rest)} figures"), _change_table(rest), open=None if moved else "", class_="bulk"
            )
        )
    said = f"Baseline: {clean(dig(origin, 'origin'))}; metrics {clean(dig(origin, 'metrics_sha256'))[:12]}. {EXPLANATION}"
    return [*parts, tag("p", said, class_="soft note")]


def tiles(record: BuildRecord, metrics: dict[str, Any]) -> Markup:
    """Five figures, each with its spread or range, and its change where there is a baseline."""
    length, speed = metrics["acceptance_length"], metrics["speedup"]
    how = "served" if length["served"] is not None else "simulated"
    half = metrics["spread"]["acceptance_length"][how]
    equality = record.serving.get("equality") if record.measured else None
    equal = f"{plain(dig(equality, 'equal'))} of {plain(dig(equality, 'prompts'))}" if metrics["equal_outputs"] is not None else "–"
    spread = f"speed-up at batch 1 ({plain(speed['min'])}× to {plain(speed['max'])}×)" if speed["median"] is not None else "speed-up: not measured"
    shown: list[tuple[Child, Child, str]] = [
        (
            plain(length[how]) if length[how] is not None else "–",
            f"acceptance length, {how}{f', ± {half:.2f} over prompts' if half is not None else ''}",
            f"acceptance_length.{how}",
        ),
        (f"{plain(speed['median'])}×" if speed["median"] is not None else "–", spread, "speedup.median"),
        (equal, "prompts with identical output", "equal_outputs"),
        (_millions(metrics["parameters"]["saved"]), f"parameters; {_millions(metrics['parameters']['trainable'])} trained", "parameters.saved"),
        (
            percent(metrics["coverage"]["holdout"]) if metrics["coverage"]["holdout"] is not None else "–",
            "of held-out tokens in the draft vocabulary",
            "coverage.holdout",
        ),
    ]
    items = [
        tag("li", tag("strong", figure), tag("span", words), _change_line(figure_change(record.comparison, key)), class_="tile") for figure, words, key in shown
    ]
    return tag("ul", items, class_="tiles")


def proofs(verdict: Verdict) -> list[Markup]:
    """The claims behind the verdict, with their evidence."""
    return [tag("div", [_proof(proof) for proof in verdict.proofs], class_="proofs")]


def _proof(proof: Proof) -> Markup:
    lines = [
        tag("li", badge(line.status, with_word=False), line.text, tag("div", line.hint, class_="soft") if line.hint else None, class_=line.status)
        for line in proof.evidence
    ]
    return tag("div", tag("h3", proof.title, " ", badge(proof.status)), tag("ul", lines), class_=f"proof {proof.status}")


def _change_table(found: list[ChangeRow]) -> Markup:
    body = [[row.label, row.before, row.now, row.change, row.spread or "exact", _sign(row)] for row in found]
    return table(["figure", "before", "now", "change", "spread of the change", "reading"], body, class_="stack pairs numbers")


def _sign(row: ChangeRow) -> Markup:
    return tag("span", tag("span", SIGNS[row.kind], aria_hidden="true"), f" {row.words}", class_=f"badge {TONES[row.kind]}")


def _change_line(row: ChangeRow | None) -> Markup | None:
    if row is None or row.kind == "same":
        return None
    return tag("span", tag("span", SIGNS[row.kind], aria_hidden="true"), f" {row.change} {row.words}", class_=f"delta badge {TONES[row.kind]}")


def _millions(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:,.1f}M" if value >= 1e5 else f"{value:,}"
