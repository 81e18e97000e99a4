"""What DVC holds, by DVC's own hand: a real repository, one stage, and what is swept when."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from draftyard.dvc_state import DvcState, md5_file
from draftyard.work import areas, stored, sweep

ROOT = Path(__file__).parents[1]
STAGE = """
import logging, sys
from pathlib import Path
from draftyard.artifacts.files import write_json
from draftyard.artifacts.lineage import write_lineage
from draftyard.work import WorkArea

logging.basicConfig(level=logging.INFO, format="%(message)s")
root = Path.cwd()
with WorkArea(root / ".work", "make", {}, {}) as area:
    if not area.publish_finished(root):
        print("computed")
        out = area.new_out("out")
        out.mkdir()
        (out / "shard").write_bytes(b"x" * 200_000)
        write_lineage(out, "made", inputs={}, params={}, packages={})
        write_json(area.new_out("metrics.json"), {"a": 1})
        area.finish(root, ("out", "metrics.json"))
"""
GRAPH = """stages:
  make:
    cmd: python make.py
    outs: [out]
    metrics: [{metrics.json: {cache: false}}]
"""


def dvc(root: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    variables.update(PYTHONPATH=str(ROOT / "src"), PATH=f"{Path(sys.executable).parent}:{variables['PATH']}")
    result = subprocess.run(["dvc", *arguments], cwd=root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / ".dvc").mkdir(parents=True)
    config = (ROOT / ".dvc/config").read_text()
    (root / ".dvc/config").write_text(config.replace("[core]", "[core]\n    no_scm = true", 1))
    (root / "make.py").write_text(STAGE)
    (root / "dvc.yaml").write_text(GRAPH)
    return root


@pytest.mark.slow
def test_the_result_is_safe_from_the_end_of_the_stage_to_dvcs_cache(root: Path) -> None:
    # The stage has ended, DVC was killed before it stored anything: then DVC deletes the outputs and runs the stage again.
    subprocess.run([sys.executable, "make.py"], cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)
    (area,) = areas(root / ".work")
    assert not stored(area, root)
    sweep(root / ".work", root)
    shutil.rmtree(root / "out")
    said = dvc(root, "repro")
    assert "nothing is computed again" in said
    assert "computed\n" not in said
    # Stored: one set of bytes under three names, and the area can go.
    state = DvcState.read(root)
    object_path = state.object_path(state.listing("out")["shard"])
    assert object_path is not None
    names = [object_path, root / "out/shard", area / "outs/out/shard"]
    assert md5_file(object_path) == state.listing("out")["shard"]
    if "hardlink" in (root / ".dvc/config").read_text().split("type")[1].split(",")[0]:
        assert all(name.samefile(object_path) for name in names)
    assert stored(area, root)
    sweep(root / ".work", root)
    assert list(areas(root / ".work")) == []
    assert (root / "out/shard").stat().st_size == 200_000


@pytest.mark.slow
def test_what_the_cache_lost_is_not_held(root: Path) -> None:
    dvc(root, "repro")
    (area,) = areas(root / ".work")
    state = DvcState.read(root)
    assert state.holds("out", root / "out/lineage.json")
    assert state.holds("metrics.json", root / "metrics.json")
    assert not state.holds("nowhere", root / "metrics.json")
    path = state.object_path(state.listing("out")["shard"])
    assert path is not None
    path.unlink()
    assert not stored(area, root)
    (root / "dvc.lock").write_text("<<<<<<< ours\n")
    assert DvcState.read(root).outs == {}
    assert not stored(area, root)


def test_no_dvc_repository(tmp_path: Path) -> None:
    state = DvcState.read(tmp_path)
    assert (state.outs, state.cache, state.listing("out")) == ({}, None, {})
