"""A build that is killed again and again ends with the bytes of one that was left alone. kill_rounds.py runs more of it by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.conftest import TinyBuild
from tests.pipeline.kill_rounds import kill_rounds, snapshot
from tests.pipeline.tiny_repo import make_repository

KILLS = 3
SEED = 5
DELAY_BASE_SECONDS = 50.0


@pytest.mark.slow
@pytest.mark.engine
def test_a_build_from_scratch_that_is_killed_gives_the_same_bytes(tiny_build: TinyBuild, tmp_path: Path) -> None:
    """Also the proof of determinism: this build and `tiny_build` share nothing but params, package versions and machine."""
    root = make_repository(tmp_path / "killed")
    until_train = ("data/", "models/", "reports/stages/", "reports/training.csv")
    expected = {name: digest for name, digest in snapshot(tiny_build.root).items() if name.startswith(until_train)}
    assert {"models/draft/model.safetensors", "models/vocab/vocab.safetensors", "data/hidden_states/index.json"} <= set(expected)
    rounds = kill_rounds(expected, root, kills=KILLS, seed=SEED, reference_seconds=DELAY_BASE_SECONDS, until="train", builds=1)
    print(rounds.render())
    assert rounds.differences == []
    assert sum(rounds.kills.values()) >= 1  # on a fast machine the build may end before the last kill
