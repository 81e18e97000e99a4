"""Training curves in TensorBoard, Weights & Biases or MLflow while they grow: accelerate's trackers. A result never depends on them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftyard.errors import ParamError

PROJECT = "draftyard"
DEFAULT_PLACES = {"WANDB_DIR": "{directory}", "MLFLOW_TRACKING_URI": "sqlite:///{directory}/mlflow.db"}
"""Where Weights & Biases and MLflow write unless the user's environment says otherwise: not into the work tree."""


def tracker_options(logger: str | None, directory: Path | None) -> dict[str, Any]:
    """Keyword arguments for accelerate.Accelerator: the tracker named `logger` (runtime.yaml, train.logger), writing below `directory`;
    none when either is None.

    Raises ParamError when its package is not installed: accelerate itself would go on without it.
    """
    if logger is None or directory is None:
        return {}
    from accelerate.tracking import get_available_trackers

    if logger not in {tracker.value for tracker in get_available_trackers()}:
        raise ParamError("train.logger", logger, f"the package is not installed; .venv/bin/pip install {logger}, or set train.logger in runtime.yaml to null")
    for variable, place in DEFAULT_PLACES.items():  # accelerate has no say in where these two write
        os.environ.setdefault(variable, place.format(directory=directory.absolute()))
    return {"log_with": logger, "project_dir": str(directory)}


@contextlib.contextmanager
def tracked(accelerator: Any, run: str, params: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Open one run for this training in every tracker of `accelerator`, named `run`, with the params as its configuration; close it at the end."""
    config = {f"{group}.{key}": value for group, values in params.items() for key, value in values.items() if isinstance(value, (int, float, str))}
    accelerator.init_trackers(f"{PROJECT}-{run}", config=config)
    try:
        yield
    finally:
        for tracker in accelerator.trackers:  # not end_training(), which ends the process group too
            tracker.finish()
