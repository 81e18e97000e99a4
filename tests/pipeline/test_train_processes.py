"""The stage `train` as several processes on one machine (gloo): one of them locks, writes and publishes, and its errors reach all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from draftyard.artifacts.files import digest_directory, read_json
from draftyard.artifacts.lineage import read_lineage
from draftyard.work import areas, lock_area
from tests.pipeline.made_up import make_training_repository
from tests.pipeline.tiny_repo import ROOT, environment

PROCESSES = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train(root: Path, processes: int) -> list[tuple[int, str]]:
    """Run stages/train.py as torchrun would. Returns exit status and words of each process."""
    port = str(free_port())
    started = []
    for rank in range(processes):
        variables = environment(ROOT)
        if processes > 1:
            variables.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [sys.executable, str(ROOT / "stages/train.py")]
        started.append(subprocess.Popen(command, cwd=root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [child.communicate(timeout=600)[0] for child in started]
    finally:
        for child in started:
            child.kill()
    return [(child.returncode, output) for child, output in zip(started, outputs, strict=True)]


@pytest.mark.slow
def test_two_processes_make_one_draft(tmp_path: Path) -> None:
    root = make_training_repository(tmp_path / "repository")
    runtime = root / "runtime.yaml"
    runtime.write_text(runtime.read_text().replace("threads: null", "threads: 1"))  # the processes share the cores
    for code, output in train(root, PROCESSES):
        assert code == 0, output[-3000:]
    assert read_lineage(root / "models/draft", "draft").digest == digest_directory(root / "models/draft")
    metrics = read_json(root / "reports/stages/train.json")
    assert metrics["samples"] == 24
    assert len((root / "reports/training.csv").read_text().splitlines()) == metrics["steps"] + 1
    assert sorted(path.name for path in (root / "models").iterdir()) == ["draft", "verifier.json", "vocab"]

    # While another process holds the area, every process says so, and ends.
    (area,) = areas(root / ".work")
    lock = lock_area(area)
    assert lock is not None
    (first, said), (second, also_said) = train(root, PROCESSES)
    os.close(lock)
    assert (first, second) == (1, 1)
    assert f"train failed: {area}: another process is building this" in said
    assert f"train failed: the first process failed: {area}: another process is building this" in also_said
