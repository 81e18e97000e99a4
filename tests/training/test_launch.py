"""Training as several processes that torchrun starts: the same losses, and a resume point that any number of processes goes on from."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tests.pipeline.made_up import make_training_repository
from tests.pipeline.tiny_repo import ROOT, environment, write_params

pytestmark = pytest.mark.slow
SABOTAGE = ROOT / "tests/pipeline/sabotage"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples of 24 tokens, 4 a step in 2 micro-batches: 12 steps in 2 epochs, a resume point every 2."""
    root = make_training_repository(tmp_path_factory.mktemp("launch") / "repository")
    write_params(root, train={"epochs": 2, "batch_tokens": 96})
    set_runtime(root, micro_batch_tokens=48, checkpoint_every_steps=2)
    return root


@pytest.fixture(scope="module")
def trained_alone(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository after one process has trained."""
    return train(copy(repository, tmp_path_factory.mktemp("alone")), 1)[0]


@pytest.fixture(scope="module")
def alone(trained_alone: Path) -> list[dict[str, float]]:
    """The curves of one process."""
    return curves(trained_alone)


def set_runtime(root: Path, **changes: Any) -> None:
    runtime = yaml.safe_load((root / "runtime.yaml").read_text())
    runtime["threads"] = 1
    runtime["train"].update(changes)
    (root / "runtime.yaml").write_text(yaml.safe_dump(runtime))


def copy(repository: Path, directory: Path) -> Path:
    return Path(shutil.copytree(repository, directory / "copy", symlinks=True))


def train(root: Path, processes: int, code: int = 0, **extra: str) -> tuple[Path, str]:
    """Run the stage as dvc does. Returns the root and what it said."""
    set_runtime(root, num_processes=processes)
    variables = {**environment(ROOT), **extra}
    if extra:
        variables["PYTHONPATH"] = f"{SABOTAGE}:{variables['PYTHONPATH']}"
    command = [sys.executable, str(ROOT / "stages/train.py")]
    found = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=False, start_new_session=True)
    said = found.stdout + found.stderr + "".join(path.read_text(errors="replace") for path in (root / ".work/logs").glob("train.log"))
    assert found.returncode == code, said[-4000:]
    return root, said


def curves(root: Path) -> list[dict[str, float]]:
    with (root / "reports/training.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def assert_alike(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(found) == len(expected) == 12
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, rel=1e-4)


def test_two_processes_train_to_the_losses_of_one(repository: Path, alone: list[dict[str, float]], tmp_path: Path) -> None:
    root, _ = train(copy(repository, tmp_path), 2)
    assert_alike(curves(root), alone)
    assert (root / "models/draft/model.safetensors").is_file()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_processes_goes_on(before: int, after: int, repository: Path, alone: list[dict[str, float]], tmp_path: Path) -> None:
    """Killed while the resume point of step 8 is written: that of step 6 is what the others go on from."""
    root = copy(repository, tmp_path)
    killed = 1 if before > 1 else -9  # torchrun tells of its process, one process ends itself
    train(root, before, code=killed, KILL_AT_NAME="step-00000008-0001.json", KILL_AT_COUNT="1")
    assert not (root / "models/draft").exists()
    _, said = train(root, after)
    assert "resumed after step 6" in said
    assert_alike(curves(root), alone)


def test_sharded_processes_go_on_from_a_point_of_one_and_save_the_whole_draft(repository: Path, trained_alone: Path, tmp_path: Path) -> None:
    """The other way round, and without a kill: test_sharding.py."""
    root = copy(repository, tmp_path)
    set_runtime(root, sharding="fsdp")  # which changes nothing for one process
    train(root, 1, code=-9, KILL_AT_NAME="step-00000004-0000.json", KILL_AT_COUNT="1")
    _, said = train(root, 2)
    assert "resumed after step 2" in said
    assert_alike(curves(root), curves(trained_alone))
    found, expected = (load_file(place / "models/draft/model.safetensors") for place in (root, trained_alone))
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == {name: (t.shape, t.dtype) for name, t in expected.items()}
    for name, tensor in expected.items():
        assert float((found[name].double() - tensor.double()).norm()) <= 1e-3 * float(tensor.double().norm()), name


def test_processes_that_fail_are_told_of(repository: Path, tmp_path: Path) -> None:
    root = copy(repository, tmp_path)
    (root / "data/hidden_states/train-00000.safetensors").unlink()
    _, said = train(root, 2, code=1)
    assert "train-00000.safetensors" in said
    assert "the 2 processes of the training failed (exit code 1)" in said
