"""Stages whose shards two nodes of a Ray cluster make, with real engines: the bytes are those of the local build."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftyard.artifacts.files import digest_file
from tests.cluster.nodes import Nodes, nodes, wait_for
from tests.pipeline.conftest import TinyBuild
from tests.pipeline.tiny_repo import environment, run, write_runtime

pytest.importorskip("ray", reason="the package ray is not installed: make setup")
pytestmark = [pytest.mark.slow, pytest.mark.engine]
STAGE_LOG = ".work/logs/{}.log"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as made:
        made.add()
        yield made


@pytest.fixture
def copied(tiny_build: TinyBuild, cluster: Nodes, tmp_path: Path) -> Path:
    """The finished local build with the cluster as its executor. Threads as in the local build, so that sums come in the same order."""
    root = Path(shutil.copytree(tiny_build.root, tmp_path / "copy", symlinks=True))
    shutil.rmtree(root / ".work", ignore_errors=True)
    write_runtime(root)
    runtime: dict[str, Any] = yaml.safe_load((root / "runtime.yaml").read_text())
    runtime["executor"] = "ray"
    runtime["ray"] = {"address": cluster.address, "num_engines": 2, "cpus_per_engine": 1, "gpus_per_engine": 0}
    (root / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    return root


def files_of(directory: Path) -> dict[str, str]:
    return {path.name: digest_file(path) for path in sorted(directory.iterdir())}


def engines_of(root: Path) -> list[int]:
    """Processes of engines that this copy's build has started: their log is in its work area."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"_worker" in (entry / "cmdline").read_bytes() and str(root / ".work").encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_answers_are_those_of_the_local_build_though_a_node_dies_and_one_joins(copied: Path, cluster: Nodes) -> None:
    before, metrics = files_of(copied / "data/generations"), json.loads((copied / "reports/stages/generate.json").read_text())
    log = copied / STAGE_LOG.format("generate")

    def said(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text()) if log.exists() else []

    dying = cluster.add()
    command = ["dvc", "repro", "--force", "--single-item", "generate"]
    build = subprocess.Popen(command, cwd=copied, env=environment(copied), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: len(engines_of(copied)) == 2, "the start of two engines")
        first = engines_of(copied)
        for pid in first:  # both have a shard in hand; neither may finish it yet
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: len(said(r"\S+: to engine")) == 2, "two shards handed out")
        cluster.kill(dying)
        wait_for(lambda: len(said("goes to another engine")) == 1, "the loss of the node")
        cluster.add()
        wait_for(lambda: bool(said(r"made by engine (?![01] )")), "a shard made on the node that joined")
        for pid in set(first) & set(engines_of(copied)):
            os.kill(pid, signal.SIGCONT)
        output = build.communicate(timeout=600)[0]
    finally:
        build.kill()
    assert build.returncode == 0, output[-4000:]
    assert files_of(copied / "data/generations") == before
    assert json.loads((copied / "reports/stages/generate.json").read_text()) == metrics
    (lost,) = said(r"was lost; (\S+) goes to another engine")
    assert len(said(rf"{lost}: to engine")) == 2  # and no other shard was begun twice
    assert len(said(r"\S+: to engine")) == len(said(r"\S+: made by engine")) + 1 == len(before)  # shards, and lineage.json for the one begun twice
    assert engines_of(copied) == []


def test_hidden_states_are_those_of_the_local_build(copied: Path, cluster: Nodes) -> None:
    before, metrics = files_of(copied / "data/hidden_states"), json.loads((copied / "reports/stages/hidden_states.json").read_text())
    run(copied, "dvc", "repro", "--force", "--single-item", "hidden_states")
    assert files_of(copied / "data/hidden_states") == before
    assert json.loads((copied / "reports/stages/hidden_states.json").read_text()) == metrics
    assert "made by engine" in (copied / STAGE_LOG.format("hidden_states")).read_text()
