"""Training whose processes Ray Train places on two nodes: the losses of one process, also when a node is lost on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.nodes import Nodes, nodes, wait_for
from tests.pipeline.made_up import make_training_repository
from tests.pipeline.tiny_repo import ROOT, environment, write_params
from tests.training.test_launch import assert_alike, curves, set_runtime, train

pytest.importorskip("ray", reason="the package ray is not installed: make setup")
pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as made:
        made.add()
        yield made


def repository(root: Path) -> Path:
    """12 steps of two micro-batches, a resume point every 2."""
    make_training_repository(root)
    write_params(root, train={"epochs": 2, "batch_tokens": 96})
    set_runtime(root, micro_batch_tokens=48, checkpoint_every_steps=2)
    return root


def on_ray(root: Path, cluster: Nodes) -> subprocess.Popen[str]:
    runtime: dict[str, Any] = yaml.safe_load((root / "runtime.yaml").read_text())
    runtime["executor"] = "ray"
    runtime["train"]["num_processes"] = 2
    runtime["ray"] = {"address": cluster.address, "num_engines": 2, "cpus_per_engine": 1, "gpus_per_engine": 0}
    (root / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    command = [sys.executable, str(ROOT / "stages/train.py")]
    return subprocess.Popen(command, cwd=root, env=environment(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ranks(root: Path) -> list[int]:
    """The processes that train in `root`: those of stages/train.py with a RANK."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    b"RANK=" in (entry / "environ").read_bytes()
                    and b"stages/train.py" in (entry / "cmdline").read_bytes()
                    and (entry / "cwd").readlink() == root
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_two_nodes_train_to_the_losses_of_one_process_though_one_is_lost(cluster: Nodes, tmp_path: Path) -> None:
    expected = curves(train(repository(tmp_path / "alone"), 1)[0])
    root = repository(tmp_path / "cluster")
    dying = cluster.add()
    stage = on_ray(root, cluster)
    wait_for(lambda: len(ranks(root)) == 2, "the start of two processes")
    first = ranks(root)
    for pid in first:  # neither may finish before the node is lost
        os.kill(pid, signal.SIGSTOP)
    cluster.kill(dying)
    cluster.add()
    for pid in first:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    output = stage.communicate(timeout=900)[0]
    assert stage.returncode == 0, output[-4000:]
    assert_alike(curves(root), expected)
    assert (root / "models/draft/model.safetensors").is_file()
    assert ranks(root) == []
