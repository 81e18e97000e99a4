"""report.md and the summary at the end of a build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from draftyard.reporting.build import write_report
from draftyard.reporting.inputs import MARKDOWN
from draftyard.reporting.summary import main
from tests.reporting.conftest import params


def test_markdown_says_the_verdict_and_the_figures(root: Path) -> None:
    write_report(root, params(uncovered_tokens=3))
    text = (root / MARKDOWN).read_text(encoding="utf-8")
    assert text.startswith("# SmolLM2 draft\n\n✅ **This draft is ready to serve: 1.42×")
    for line in (
        "| identical greedy output | 39 of 40 prompts |",
        "| draft vocabulary coverage, train / holdout | 98.71% / 97.02% |",
        "head_dim 128, hidden / heads 64; 16 tensors, 0 not as expected.",
    ):
        assert line in text
    assert "Averroes" not in text, "report.uncovered_tokens bounds the list"


def test_summary_holds_what_a_build_ends_with(root: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "draftyard.reporting.summary", str(root)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("This draft is ready to serve")
    assert "  code                      2.05      2.06" in lines
    assert "speed-up          1.42x plain decoding at batch 1 (1.38x to 1.45x)" in lines
    assert "identical output  39 of 40 prompts" in lines
    assert "parameters        39,557,376 saved, 11,245,824 trained" in lines
    assert lines[-1] == f"report            {root / 'reports/report.html'}"


def test_summary_of_a_damaged_record_is_a_sentence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "reports/verify/static.json").write_text("{")
    assert main([str(root)]) == 1
    assert "static.json: is not valid JSON" in capsys.readouterr().err


def test_summary_needs_no_heavy_import() -> None:
    code = "import sys, draftyard.reporting.summary, draftyard.reporting.build, draftyard.reporting.page; print([n for n in ('torch', 'vllm', 'transformers', 'dvc') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
