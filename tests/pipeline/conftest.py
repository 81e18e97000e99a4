"""One real build of a tiny verifier for all tests of the pipeline."""

from __future__ import annotations

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
    """A real `dvc repro`, vLLM included, about a minute on two free cores. Tests that change something copy it first."""
    root = make_repository(tmp_path_factory.mktemp("tiny") / "build")
    result = run(root, "dvc", "repro")
    commit(root, "built")
    return TinyBuild(root, result.stdout + result.stderr)
