"""`draftyard work`: what waits on this machine, whether a run of now would go on with it, and what --prune removes."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from draftyard.artifacts.files import read_json, write_json
from draftyard.artifacts.lineage import package_versions, write_lineage
from draftyard.cli import main
from draftyard.params.load import load_file
from draftyard.runtime import WORK_DIR_VARIABLE, load_runtime
from draftyard.stage_code import stage_code
from draftyard.work import KEY_FILE, WorkArea, lock_area
from draftyard.work_list import list_areas, prune

ROOT = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with params, runtime, graph, stage scripts and prompts; the current directory."""
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("params.yaml", "runtime.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "stages", root / "stages")
    (root / "data/prompts").mkdir(parents=True)
    (root / "data/prompts/train.jsonl").write_text("{}\n")
    write_lineage(root / "data/prompts", "prompts", inputs={}, params={}, packages={})
    monkeypatch.chdir(root)
    monkeypatch.delenv(WORK_DIR_VARIABLE, raising=False)
    return root


def generate_area(root: Path, **changes: Any) -> WorkArea:
    """The area of `generate` for the repository as it is, its material changed by `changes`."""
    runtime = load_runtime(root)
    material = {
        "params": {"generate": dataclasses.asdict(load_file(root / "params.yaml").generate)},
        "inputs": {"prompts": read_json(root / "data/prompts/lineage.json")["digest"]},
        "packages": package_versions("torch"),
        "engine": runtime.engine.batching(),
        "threads": runtime.num_threads(),
        **changes,
    }
    return WorkArea(root / ".work", "generate", material, stage_code(root, "generate"))


def worked(area: WorkArea, size: int = 1000) -> WorkArea:
    with area:
        (area.path / "shard").write_bytes(b"x" * size)
    return area


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_work_that_a_run_of_now_would_go_on_with_is_current(root: Path) -> None:
    area = worked(generate_area(root))
    old = time.time() - 7300
    for file in area.path.iterdir():
        os.utime(file, (old, old))
    (listed,) = list_areas(root / ".work", root)
    assert (listed.stage, listed.key, listed.state, listed.differences) == ("generate", area.key, "current", ())
    assert 1000 < listed.num_bytes < 20_000
    assert 7300 <= listed.age_seconds < 7400
    assert prune([listed]) == []


def test_a_clock_that_goes_backwards_is_no_negative_age(root: Path) -> None:
    area = worked(generate_area(root))
    tomorrow = time.time() + 86_400
    os.utime(area.path / "shard", (tomorrow, tomorrow))
    (listed,) = list_areas(root / ".work", root)
    assert listed.age_seconds == 0.0
    assert listed.state == "current"


@pytest.mark.parametrize(
    ("what", "difference"),
    [
        ("params", "generate.temperature is now 0.25, was 0.8"),
        ("runtime", "runtime.yaml: engine has changed"),
        ("inputs", "prompts has changed ("),
        ("code", "stages/generate.py has changed"),
        ("packages", "torch is now "),
        ("key file", "key.json is damaged"),
    ],
)
def test_work_of_another_configuration_is_old_and_says_why(what: str, difference: str, root: Path) -> None:
    temperature = load_file(root / "params.yaml").generate.temperature
    area = worked(generate_area(root, **({"packages": {"torch": "1.0"}} if what == "packages" else {})))
    if what == "params":
        edit(root / "params.yaml", f"  temperature: {temperature}", "  temperature: 0.25")
        difference = difference.replace("0.8", str(temperature))
    elif what == "runtime":
        edit(root / "runtime.yaml", "max_num_seqs:", "max_num_seqs: 7 #")
    elif what == "inputs":
        (root / "data/prompts/train.jsonl").write_text("{}\n{}\n")
        write_lineage(root / "data/prompts", "prompts", inputs={}, params={}, packages={})
    elif what == "code":
        with (root / "stages/generate.py").open("a") as file:
            file.write("# changed\n")
    elif what == "key file":
        (area.path / KEY_FILE).write_text("{")
    (listed,) = list_areas(root / ".work", root)
    assert listed.state == "old"
    assert len(listed.differences) == 1
    assert listed.differences[0].startswith(difference)


def test_prune_removes_old_work_and_says_so(root: Path) -> None:
    current, old = worked(generate_area(root)), worked(generate_area(root, threads=999))
    listed = CliRunner().invoke(main, ["work"])
    assert listed.exit_code == 0, listed.output
    assert [line.split()[-1] for line in listed.output.splitlines() if line.startswith("generate")] == [
        "current" if area is current else "old" for area in sorted((current, old), key=lambda area: area.key)
    ]
    assert "runtime.yaml: threads has changed" in listed.output
    assert "1 of 2 can go (" in listed.output
    assert old.path.exists()  # nothing goes by listing
    pruned = CliRunner().invoke(main, ["work", "--prune"])
    assert f"removed {old.path} (old)" in pruned.output
    assert not old.path.exists()
    assert (current.path / "shard").exists()
    as_json = json.loads(CliRunner().invoke(main, ["work", "--json"]).output)
    assert [(row["key"], row["state"]) for row in as_json["work"]] == [(current.key, "current")]


def test_prune_spares_what_a_process_works_on(root: Path) -> None:
    old = worked(generate_area(root, threads=999))
    lock = lock_area(old.path)
    assert lock is not None
    (listed,) = list_areas(root / ".work", root)
    assert listed.state == "running"
    assert prune([listed]) == []
    os.close(lock)
    (listed,) = list_areas(root / ".work", root)
    assert [area.key for area in prune([listed])] == [old.key]


def test_a_finished_result_that_dvc_does_not_hold_is_kept(root: Path) -> None:
    with generate_area(root) as area:
        write_json(area.new_out("reports/x.json"), {})
        area.finish(root, ("reports/x.json",))
    (listed,) = list_areas(root / ".work", root)
    assert listed.state == "finished"
    assert prune([listed]) == []


def test_no_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORK_DIR_VARIABLE, str(root / "elsewhere"))
    assert CliRunner().invoke(main, ["work"]).output == f"{root / 'elsewhere'}: no unfinished work\n"
