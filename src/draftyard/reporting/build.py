"""Writing the three files of the report."""

from __future__ import annotations

from pathlib import Path

from draftyard.artifacts.files import atomic_writer, write_json
from draftyard.params.report import ReportParams
from draftyard.reporting.html import render_html
from draftyard.reporting.inputs import load_record
from draftyard.reporting.markdown import render_markdown
from draftyard.reporting.metrics import build_metrics
from draftyard.reporting.verdict import Verdict, judge

METRICS, MARKDOWN, HTML = "reports/metrics.json", "reports/report.md", "reports/report.html"


def write_report(root: Path, params: ReportParams) -> Verdict:
    """Write metrics.json, report.md and report.html of the repository `root`. Raises ArtifactError for a damaged record."""
    record = load_record(root)
    metrics, verdict = build_metrics(record), judge(record)
    write_json(root / METRICS, metrics)
    for path, text in ((MARKDOWN, render_markdown(record, metrics, verdict, params)), (HTML, render_html(record, metrics, verdict, params))):
        with atomic_writer(root / path) as file:
            file.write(text)
    return verdict
