"""Trackers: what runtime.yaml names must be there, they get every step, and no weight depends on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from accelerate.utils import LoggerType

from draftyard.errors import ParamError
from draftyard.training import loop
from draftyard.training.loop import Trainer
from draftyard.training.tracking import tracked, tracker_options
from tests.training.small import FakeAccelerator, named_samples, small_model, train_params, write_data


class Recorder(GeneralTracker):
    """One of accelerate's trackers that keeps what it gets."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, Any] = {}
        self.logged: list[tuple[int | None, dict[str, float]]] = []
        self.finished = False

    @property
    def tracker(self) -> Any:
        return self

    def start(self) -> None:
        self.config = {}

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True


def test_a_missing_package_is_an_error_and_not_a_silence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(ParamError, match=r"^train\.logger='wandb': the package is not installed; \.venv/bin/pip install wandb"):
        tracker_options("wandb", tmp_path)


def test_no_logger_no_options(tmp_path: Path) -> None:
    assert tracker_options(None, tmp_path) == tracker_options("wandb", None) == {}


def test_a_logger_writes_into_the_logs_unless_its_user_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [LoggerType.WANDB, LoggerType.MLFLOW])
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example:5000")
    assert tracker_options("mlflow", tmp_path) == {"log_with": "mlflow", "project_dir": str(tmp_path)}
    assert (os.environ["WANDB_DIR"], os.environ["MLFLOW_TRACKING_URI"]) == (str(tmp_path), "http://mlflow.example:5000")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    tracker_options("mlflow", tmp_path)
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_tracker_gets_the_params_and_is_closed_in_any_case() -> None:
    recorder = Recorder()
    accelerator = Accelerator(cpu=True, log_with=recorder)
    with pytest.raises(KeyboardInterrupt), tracked(accelerator, "key", {"train": {"epochs": 2, "seed": 0}, "draft": {"hidden_size": None, "head_dim": 64}}):
        accelerator.log({"loss": 1.5}, step=7)
        raise KeyboardInterrupt
    assert recorder.config == {"train.epochs": 2, "train.seed": 0, "draft.head_dim": 64}
    assert recorder.logged == [(7, {"loss": 1.5})]
    assert recorder.finished


def test_without_a_tracker_nothing_happens() -> None:
    accelerator = Accelerator(cpu=True)
    with tracked(accelerator, "key", {"train": {"epochs": 2}}):
        accelerator.log({"loss": 1.0}, step=1)
    assert accelerator.trackers == []


def test_training_tells_every_step_and_the_acceptance_of_every_epoch(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", named_samples("t", [12, 20, 16, 25]), named_samples("h", [10], seed=6))
    accelerator = FakeAccelerator()
    made = Trainer(small_model(large=False), data, train_params(), micro_batch_tokens=40, accelerator=accelerator)
    position = made.run().position
    steps = [step for step, values in accelerator.logged if "loss" in values]
    assert steps == list(range(1, position.step + 1))
    assert [values["loss"] for _, values in accelerator.logged if "loss" in values] == [row["loss"] for row in position.rows]
    acceptance = [values["holdout_acceptance_length"] for _, values in accelerator.logged if "holdout_acceptance_length" in values]
    assert acceptance == [epoch["holdout_acceptance_length"] for epoch in position.epochs]


def test_the_curves_on_disk_follow_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between resume points too: here after every step, of which a reader sees whole files only."""
    monkeypatch.setattr(loop, "CURVES_SECONDS", 0.0)
    seen: list[int] = []

    class Reader(FakeAccelerator):
        def log(self, values: dict[str, float], step: int) -> None:
            seen.append(len(csv_path.read_text().splitlines()) - 1 if csv_path.exists() else 0)

    csv_path = tmp_path / "training.csv"
    data = write_data(tmp_path / "data", named_samples("t", [12, 20, 16, 25]), named_samples("h", [10], seed=6))
    Trainer(
        small_model(large=False), data, train_params(epochs=1), micro_batch_tokens=40, accelerator=Reader(), csv_path=csv_path, checkpoint_every_steps=1 << 30
    ).run()
    assert seen[:3] == [0, 1, 2]
