"""The benchmarks run on a finished build: what they read of it is what it writes today. Their figures are not tested here."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import TinyBuild
from tests.pipeline.tiny_repo import ROOT, run

pytestmark = [pytest.mark.slow, pytest.mark.engine]


@pytest.fixture
def copied(tiny_build: TinyBuild, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(tiny_build.root, tmp_path / "copy", symlinks=True))
    shutil.copytree(ROOT / "benchmarks", root / "benchmarks")
    return root


def test_training_agrees_with_speculators(copied: Path) -> None:
    run(copied, sys.executable, "benchmarks/training_speed.py", "--pack-tokens", "200", "--tokens", "400", "--pairs", "1")  # exits 1 when losses differ


def test_float8_takes_the_bytes_that_the_formats_page_says(copied: Path) -> None:
    """By hand, per token: four states of 64 float32 values, or of 64 bytes and a scale of four; and five bytes for token id and mask."""
    run(copied, sys.executable, "benchmarks/feature_dtype.py", "--json", "float8.json")
    sizes = json.loads((copied / "float8.json").read_text(encoding="utf-8"))["bytes"]
    assert sizes["float32"] / sizes["float8_e4m3"] == pytest.approx((4 * 64 * 4 + 5) / (4 * (64 + 4) + 5), rel=0.03)


def test_extraction_is_timed_beside_bare_vllm_on_the_same_tokens(copied: Path) -> None:
    said = run(copied, sys.executable, "benchmarks/engine_speed.py", "--only", "extraction", "--prompts", "4", "--pairs", "1").stdout
    assert "| 4 of 4 |" in said, said
