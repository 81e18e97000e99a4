"""reports/report.html: one file that shows a build, without network or script."""

from __future__ import annotations

from typing import Any

from draftyard.params.report import ReportParams
from draftyard.reporting import sections_draft, sections_measured, sections_origin
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.markup import Child, Markup, tag
from draftyard.reporting.sections_draft import badge
from draftyard.reporting.style import CSS
from draftyard.reporting.text import dig, percent, plain
from draftyard.reporting.verdict import Proof, Verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: a text that slipped through as an element could still load and run nothing."""
VERDICT_WORDS = {"pass": "Verdict: ready", "warn": "Verdict: works, no gain", "fail": "Verdict: do not serve", "skipped": "Verdict: not proved"}


def render_html(record: BuildRecord, metrics: dict[str, Any], verdict: Verdict, params: ReportParams) -> str:
    """The report as one HTML document. The same records give the same bytes."""
    sections: list[tuple[str, str, list[Markup]]] = [
        ("acceptance", "Acceptance", sections_measured.acceptance(record)),
        ("speed", "Speed", sections_measured.speed(record)),
        ("equality", "Equality of outputs", sections_measured.equality(record)),
        ("architecture", "Architecture", sections_draft.architecture(record)),
        ("vocabulary", "Vocabulary", sections_draft.vocabulary(record, params.uncovered_tokens)),
        ("training", "Training", sections_draft.training(record)),
        ("sample", "What it learned from", sections_draft.loss_mask(record)),
        ("data", "Data", sections_origin.data(record)),
        ("lineage", "Lineage", sections_origin.lineage(record)),
        ("environment", "Environment", sections_origin.environment(record)),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{params.title}: {VERDICT_WORDS[verdict.status].removeprefix('Verdict: ')}"),
        tag("style", Markup(CSS)),
    )
    header = tag(
        "header",
        tag("h1", params.title),
        tag("p", _subject(record), class_="subject"),
        tag("p", tag("b", VERDICT_WORDS[verdict.status]), verdict.sentence, class_=f"verdict {verdict.status}"),
        _tiles(record, metrics),
        tag("nav", [tag("a", title, href=f"#{key}") for key, title, _ in sections], aria_label="Sections"),
    )
    proofs = tag("section", tag("h2", "Three proofs"), tag("div", [_proof(proof) for proof in verdict.proofs], class_="proofs"), id="proofs", class_="long")
    body = [tag("section", tag("h2", title), parts, id=key, class_="long" if key != "speed" else None) for key, title, parts in sections]
    page = tag("html", head, tag("body", header, tag("main", proofs, body)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _subject(record: BuildRecord) -> str:
    if not record.card:
        return "An EAGLE-3 draft; the verifier's card is missing."
    revision = f", revision {record.card.get('revision')}" if record.card.get("revision") else ""
    layout = f"; {record.static.get('layout')} layout" if record.static.get("layout") else ""
    return f"EAGLE-3 draft for {record.card.get('name')}{revision}{layout}"


def _tiles(record: BuildRecord, metrics: dict[str, Any]) -> Markup:
    length, speed = metrics["acceptance_length"], metrics["speedup"]
    how = "served" if length["served"] is not None else "simulated"
    equality = record.serving.get("equality") if record.measured else None
    equal = f"{plain(dig(equality, 'equal'))} of {plain(dig(equality, 'prompts'))}" if metrics["equal_outputs"] is not None else "–"
    spread = f"speed-up at batch 1 ({plain(speed['min'])}× to {plain(speed['max'])}×)" if speed["median"] is not None else "speed-up: not measured"
    tiles: list[tuple[Child, Child]] = [
        (plain(length[how]) if length[how] is not None else "–", f"acceptance length, {how}"),
        (f"{plain(speed['median'])}×" if speed["median"] is not None else "–", spread),
        (equal, "prompts with identical output"),
        (_millions(metrics["parameters"]["saved"]), f"parameters; {_millions(metrics['parameters']['trainable'])} trained"),
        (percent(metrics["coverage"]["holdout"]) if metrics["coverage"]["holdout"] is not None else "–", "of held-out tokens in the draft vocabulary"),
    ]
    return tag("ul", [tag("li", tag("strong", figure), tag("span", words)) for figure, words in tiles], class_="tiles")


def _proof(proof: Proof) -> Markup:
    lines = [
        tag("li", badge(line.status, with_word=False), line.text, tag("div", line.hint, class_="soft") if line.hint else None, class_=line.status)
        for line in proof.evidence
    ]
    return tag("div", tag("h3", proof.title, " ", badge(proof.status)), tag("ul", lines), class_=f"proof {proof.status}")


def _millions(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:,.1f}M" if value >= 1e5 else f"{value:,}"
