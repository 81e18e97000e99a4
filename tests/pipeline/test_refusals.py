"""What does not belong together is refused by the stage that would combine it: both digests, and the stage to run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import read_json, write_json
from draftyard.artifacts.lineage import write_lineage
from draftyard.errors import ArtifactError
from draftyard.runtime import load_runtime
from draftyard.stage import StageContext
from stages import hidden_states, train, verify, vocab
from tests.pipeline.made_up import make_training_repository
from tests.pipeline.tiny_repo import tiny_params

OTHER = "f" * 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository up to the draft, all of it fitting."""
    root = make_training_repository(tmp_path_factory.mktemp("refusals") / "repository")
    digests = {
        kind: read_json(root / path / "lineage.json")["digest"] for kind, path in {"hidden_states": "data/hidden_states", "vocab": "models/vocab"}.items()
    }
    verifier = read_json(root / "data/hidden_states/lineage.json")["inputs"]["verifier"]
    (root / "models/draft").mkdir()
    write_lineage(root / "models/draft", "draft", inputs={**digests, "verifier": verifier}, params={}, packages={})
    return root


@pytest.mark.parametrize(
    ("stage", "main", "artifact", "name", "other_side", "remedy"),
    [
        ("hidden_states", hidden_states.main, "data/generations", "verifier", "models/verifier.json", "generate"),
        ("vocab", vocab.main, "data/generations", "verifier", "models/verifier.json", "generate"),
        ("train", train.main, "data/hidden_states", "verifier", "models/verifier.json", "hidden_states"),
        ("train", train.main, "models/vocab", "generations", "data/hidden_states", "hidden_states vocab"),
        ("verify", verify.main, "models/draft", "verifier", "models/verifier.json", "train"),
        ("verify", verify.main, "models/draft", "hidden_states", "data/hidden_states", "train"),
        ("verify", verify.main, "models/draft", "vocab", "models/vocab", "train"),
        ("verify", verify.main, "data/hidden_states", "generations", "data/generations", "hidden_states"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_artifact_of_another_build_is_refused(
    stage: str,
    main: Callable[[StageContext], Any],
    artifact: str,
    name: str,
    other_side: str,
    remedy: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`artifact` was made from another `name` than the one here: another verifier, its layers, template or dtype are all part of these digests."""
    root = shutil.copytree(made, tmp_path / "repository")
    monkeypatch.chdir(root)
    path = root / artifact / "lineage.json"
    lineage = read_json(path)
    used = lineage["inputs"][name]
    write_json(path, {**lineage, "inputs": {**lineage["inputs"], name: OTHER}})
    with pytest.raises(ArtifactError) as raised:
        main(StageContext(stage, root, tiny_params(), load_runtime(root), root / ".work"))
    told = str(raised.value)
    assert f"{artifact} has {OTHER}" in told
    assert f"{other_side} has {used}" in told
    assert told.endswith(f"; run dvc repro {remedy}")
