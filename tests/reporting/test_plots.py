"""What `dvc plots` draws: the figures per position and category, and a page that needs no network."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.reporting.inputs import load_record
from draftyard.reporting.plots import ACCEPTANCE, write_acceptance

ROOT = Path(__file__).parents[2]
CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


def rows(root: Path) -> list[dict[str, str]]:
    write_acceptance(root, load_record(root))
    with (root / ACCEPTANCE).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_rates_are_accepted_over_rounds_of_every_category(root: Path) -> None:
    served = json.loads((root / "reports/verify/serving.json").read_text())
    found = {(row["category"], row["figure"], int(row["position"])): float(row["rate"]) for row in rows(root)}
    for category, tally in {"all": served["overall"], **served["categories"]}.items():
        for position, rate in enumerate(tally["cumulative_rates"], start=1):
            assert found[category, "served", position] == pytest.approx(rate, rel=1e-5)
    assert {figure for _, figure, _ in found} == {"served", "simulated"}


def test_a_build_that_was_not_served_has_simulated_rows_only(root: Path, edit: Callable[[str, Callable[[Any], Any]], None]) -> None:
    edit("reports/verify/serving.json", lambda served: {"status": "skipped", "reason": "no engine", "k": served["k"]})
    found = rows(root)
    assert found
    assert {row["figure"] for row in found} == {"simulated"}


@pytest.fixture
def page(root: Path) -> Path:
    """The page of a real `dvc plots show` over the recorded build, with this repository's dvc.yaml and templates."""
    write_acceptance(root, load_record(root))
    shutil.copy(ROOT / "dvc.yaml", root)
    shutil.copy(ROOT / "reports/training.csv", root / "reports")  # the recorded one has no accuracies
    shutil.copytree(ROOT / ".dvc/plots", root / ".dvc/plots")
    config = (ROOT / ".dvc/config").read_text(encoding="utf-8")
    (root / ".dvc/config").write_text(config.replace("[core]\n", "[core]\n    no_scm = true\n"), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("dvc")), "plots", "show"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    assert "ERROR" not in result.stderr
    return root / "dvc_plots/index.html"


@pytest.mark.slow
def test_the_page_draws_every_plot_without_a_network(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", text)
    assert [title in text for title in ("Training loss per TTT step", "Training accuracy per TTT step", "Acceptance per position and category")] == [True] * 3
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line and "error" in line.lower()], done.stderr[-2000:]
    assert done.stdout.count("<canvas") + len(re.findall(r"<svg[^>]+class=\"marks\"", done.stdout)) == 3
