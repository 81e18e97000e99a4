"""reports/acceptance.csv: acceptance per position and category, a row a figure, as `dvc plots` draws it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from draftyard.artifacts.files import atomic_writer
from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.metrics import acceptance_rates
from draftyard.reporting.text import clean, mapping

ACCEPTANCE = "reports/acceptance.csv"
COLUMNS = ("category", "figure", "position", "rate")
ALL = "all"


def acceptance_rows(record: BuildRecord) -> Iterator[tuple[str, str, int, float]]:
    """(category, "served" | "simulated", position from 1, rate): the fraction of rounds that accepted at least `position` draft tokens."""
    serving = record.serving if record.measured else {}
    for figure, measured, overall in (("served", serving, serving.get("overall")), ("simulated", record.simulation, record.simulation)):
        for category, tally in ((ALL, overall), *sorted(mapping(measured.get("categories")).items())):
            for position, rate in enumerate(acceptance_rates(tally), start=1):
                yield clean(category), figure, position, rate


def write_acceptance(root: Path, record: BuildRecord) -> None:
    """Write reports/acceptance.csv, rates to six significant digits; a build that was not served has no row "served"."""
    with atomic_writer(root / ACCEPTANCE) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((category, figure, position, f"{rate:.6g}") for category, figure, position, rate in acceptance_rows(record))
