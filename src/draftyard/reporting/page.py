"""Writing reports/report.html: the figures, and the gate's lines on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftyard.artifacts.files import atomic_writer
from draftyard.gate import GateLine
from draftyard.params.report import ReportParams
from draftyard.reporting.html import render_html
from draftyard.reporting.inputs import HTML, load_record
from draftyard.reporting.metrics import build_metrics
from draftyard.reporting.verdict import judge


def write_page(root: Path, params: ReportParams, lines: Sequence[GateLine]) -> None:
    """Write report.html of the repository `root`. Raises ArtifactError for a damaged record."""
    record = load_record(root)
    text = render_html(record, build_metrics(record), judge(record), params, lines)
    with atomic_writer(root / HTML) as file:
        file.write(text)
