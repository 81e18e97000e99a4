"""The figures of the report: metrics.json, acceptance.csv, comparison.json and report.md. The page, which shows the gate too, is page.py's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from draftyard.artifacts.files import atomic_writer, write_json
from draftyard.params.report import ReportParams
from draftyard.reporting.baseline import load_baseline
from draftyard.reporting.compare import comparison
from draftyard.reporting.inputs import COMPARISON, MARKDOWN, METRICS, load_record
from draftyard.reporting.markdown import render_markdown
from draftyard.reporting.metrics import build_metrics, samples
from draftyard.reporting.plots import write_acceptance
from draftyard.reporting.verdict import Verdict, judge


def write_report(root: Path, params: ReportParams) -> Verdict:
    """Write metrics.json, acceptance.csv, comparison.json and report.md of the repository `root`.

    Raises ArtifactError for a damaged record, or a baseline that is not there.
    """
    baseline = load_baseline(root, params.baseline)
    record = load_record(root)
    metrics, verdict = build_metrics(record), judge(record)
    record = dataclasses.replace(record, comparison=comparison(metrics, samples(record), baseline))
    write_json(root / METRICS, metrics)
    write_acceptance(root, record)
    write_json(root / COMPARISON, record.comparison)
    with atomic_writer(root / MARKDOWN) as file:
        file.write(render_markdown(record, metrics, verdict, params))
    return verdict
