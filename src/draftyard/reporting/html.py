"""reports/report.html: one file that shows a build, without network or script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftyard.gate import GateLine, red
from draftyard.params.report import ReportParams
from draftyard.reporting import sections_draft, sections_learned, sections_measured, sections_origin, sections_verdict
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Markup, tag
from draftyard.reporting.style import CSS
from draftyard.reporting.verdict import Verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: a text that slipped through as an element could still load and run nothing."""
VERDICT_WORDS = {"pass": "Verdict: ready", "warn": "Verdict: works, no gain", "fail": "Verdict: do not serve", "skipped": "Verdict: not proved"}


def render_html(record: BuildRecord, metrics: dict[str, Any], verdict: Verdict, params: ReportParams, lines: Sequence[GateLine] = ()) -> str:
    """The report as one HTML document; `lines`: the gate's. The same records give the same bytes."""
    compared = [("changes", "Against the baseline", sections_verdict.changes(record))] if record.comparison.get("baseline") else []
    sections: list[tuple[str, str, list[Markup]]] = [
        ("gate", "The gate", sections_verdict.gate(lines)),
        *compared,
        ("proofs", "What the verdict rests on", sections_verdict.proofs(verdict)),
        ("acceptance", "Acceptance", sections_measured.acceptance(record, metrics)),
        ("speed", "Speed", sections_measured.speed(record, metrics)),
        ("equality", "Equality of outputs", sections_measured.equality(record)),
        ("architecture", "Architecture", sections_draft.architecture(record)),
        ("vocabulary", "Vocabulary", sections_draft.vocabulary(record, params.uncovered_tokens)),
        ("training", "Training", sections_learned.training(record)),
        ("sample", "What it learned from", sections_learned.loss_mask(record)),
        ("context", "Along the context", sections_measured.context(record)),
        ("data", "Data", sections_origin.data(record)),
        ("lineage", "Lineage", sections_origin.lineage(record)),
        ("environment", "Environment", sections_origin.environment(record)),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{params.title}: {VERDICT_WORDS[verdict.status].removeprefix('Verdict: ')}"),
        tag("style", Markup(CSS)),
    )
    header = tag(
        "header",
        tag("h1", params.title),
        tag("p", _subject(record), class_="subject"),
        tag("p", tag("b", VERDICT_WORDS[verdict.status]), verdict.sentence, _gate_note(lines), class_=f"verdict {verdict.status}"),
        sections_verdict.tiles(record, metrics),
        tag("nav", [tag("a", title, href=f"#{key}") for key, title, _ in sections], aria_label="Sections"),
    )
    body = [tag("section", tag("h2", title), parts, id=key, class_="long" if key not in ("gate", "speed") else None) for key, title, parts in sections]
    page = tag("html", head, tag("body", header, tag("main", body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _subject(record: BuildRecord) -> str:
    if not record.card:
        return "An EAGLE-3 draft; the verifier's card is missing."
    revision = f", revision {record.card.get('revision')}" if record.card.get("revision") else ""
    layout = f"; {record.static.get('layout')} layout" if record.static.get("layout") else ""
    return f"EAGLE-3 draft for {record.card.get('name')}{revision}{layout}"


def _gate_note(lines: Sequence[GateLine]) -> Markup | None:
    if not lines:
        return None
    failed = red(list(lines))
    return tag("small", "Gate: ", tag("span", sections_verdict.gate_words(lines), class_=f"badge {'red' if failed else 'green'}"), class_="gate-note")
