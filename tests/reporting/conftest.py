"""A whole build's records (tests/reporting/build), copied so that a test can break one thing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.gate import evaluate
from draftyard.params.gate import GateParams
from draftyard.params.report import ReportParams
from draftyard.reporting.build import write_report
from draftyard.reporting.inputs import HTML, METRICS
from draftyard.reporting.page import write_page

GATE = {"min_acceptance_length": 1.2, "max_simulation_gap": 0.02, "min_equal_outputs": 0.95, "min_canary_agreement": 0.97, "min_holdout_coverage": 0.9}
BUILD = Path(__file__).parent / "build"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the recorded build."""
    return Path(shutil.copytree(BUILD, tmp_path / "build"))


def params(**changes: Any) -> ReportParams:
    return ReportParams(**{"title": "SmolLM2 draft", "uncovered_tokens": 12, "baseline": None, **changes})


def write_all(root: Path, report: ReportParams | None = None, **gate: Any) -> str:
    """What the stages `report` and `gate` write; returns the page."""
    report = report or params()
    write_report(root, report)
    thresholds = GateParams(**{**GATE, "require_serving": True, **gate})
    write_page(root, report, evaluate(thresholds, json.loads((root / METRICS).read_text())))
    return (root / HTML).read_text(encoding="utf-8")


def add_samples(values: Any) -> None:
    """Per-prompt counts for a serving.json or simulation.json: each category's counts, shared out as evenly as they go."""
    values["samples"] = []
    for category, measure in values["categories"].items():
        n = measure["prompts"]
        for i in range(n):
            share = [(total * (i + 1)) // n - (total * i) // n for total in (measure["rounds"], *measure["accepted"])]
            values["samples"].append({"id": f"{category}-{i:04d}", "category": category, "rounds": share[0], "accepted": share[1:]})


@pytest.fixture
def edit(root: Path) -> Callable[[str, Callable[[Any], Any]], None]:
    """edit(path, change): rewrite a JSON file of the copy with what `change` makes of (or does to) its values."""

    def apply(path: str, change: Callable[[Any], Any]) -> None:
        values = json.loads((root / path).read_text())
        changed = change(values)
        (root / path).write_text(json.dumps(values if changed is None else changed))

    return apply
