"""One real build of a tiny verifier for all tests of the pipeline."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.tiny_repo import commit, make_repository, run


@dataclass(frozen=True)
class TinyBuild:
    """root: a committed repository whose build is done. output: what `dvc repro` said."""

    root: Path
    output: str


@pytest.fixture(scope="session")
def tiny_build(tmp_path_factory: pytest.TempPathFactory) -> TinyBuild:
    """A real `dvc repro`, vLLM included, about a minute on two free cores. Tests that change something copy it first.

    One build for all workers of `pytest -n`: the first that needs it makes it, the others wait.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    said = shared / "tiny-build.txt"
    with (shared / "tiny-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            root = make_repository(shared / "tiny" / "build")
            result = run(root, "dvc", "repro")
            commit(root, "built")
            said.write_text(result.stdout + result.stderr, encoding="utf-8")
    return TinyBuild(shared / "tiny" / "build", said.read_text(encoding="utf-8"))
