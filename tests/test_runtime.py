"""runtime.yaml: the shipped file, its rules, and where the resume area is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from draftyard.errors import ParamError
from draftyard.runtime import WORK_DIR_VARIABLE, load_runtime, work_dir

ROOT = Path(__file__).parents[1]


def write(directory: Path, group: str | None = None, **changes: object) -> Path:
    values = yaml.safe_load((ROOT / "runtime.yaml").read_text())
    (values if group is None else values[group]).update(changes)
    (directory / "runtime.yaml").write_text(yaml.safe_dump(values))
    return directory


def test_the_shipped_file_is_valid() -> None:
    runtime = load_runtime(ROOT)
    assert runtime.threads is None
    assert runtime.num_threads() == len(os.sched_getaffinity(0))
    assert runtime.train.device == "auto"


def test_threads_are_taken_as_written(tmp_path: Path) -> None:
    assert load_runtime(write(tmp_path, threads=3)).num_threads() == 3


@pytest.mark.parametrize(
    ("group", "key", "value", "rule"),
    [
        (None, "threads", 0, "must be at least 1, or null for all"),
        ("engine", "max_num_seqs", 0, "engine.max_num_seqs=0: must be at least 1"),
        ("engine", "samples_per_shard", 0, "engine.samples_per_shard=0: must be at least 1"),
        ("engine", "kv_cache_gib", 0, "must be at least 1"),
        ("engine", "gpu_memory_utilization", 1.2, r"must lie in \(0, 1\]"),
        ("engine", "gpu_memory", 1, "unknown key"),
        ("train", "device", "gpu", "must be one of auto, cpu, cuda"),
        ("train", "micro_batch_tokens", 7, "must be at least 8"),
        ("train", "checkpoint_every_steps", 0, "must be at least 1"),
    ],
)
def test_a_broken_rule_is_named(group: str | None, key: str, value: object, rule: str, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=rule):
        load_runtime(write(tmp_path, group, **{key: value}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"runtime\.yaml: no such file$"):
        load_runtime(tmp_path)


def test_the_resume_area_is_absolute_and_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORK_DIR_VARIABLE, raising=False)
    assert work_dir(tmp_path) == tmp_path / ".work"
    monkeypatch.chdir(tmp_path)
    assert work_dir(Path()).is_absolute()
    monkeypatch.setenv(WORK_DIR_VARIABLE, str(tmp_path / "elsewhere"))
    assert work_dir(ROOT) == tmp_path / "elsewhere"
    monkeypatch.setenv(WORK_DIR_VARIABLE, "")
    assert work_dir(tmp_path) == tmp_path / ".work"
