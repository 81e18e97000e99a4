"""The training's resume points: weights, optimizer state, position and curves, written whole or not at all.

A point is step-N-E.safetensors and step-N-E.json (N steps, E epochs done), renamed in this order: the second holds the digest of
the first. The last two are kept, so that a point that went bad on the disk costs one more interval and not the training. Nothing here draws random numbers:
the order of samples is that of train.seed and the epoch, and the position says how much of it is done.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftyard.artifacts.files import digest_file, read_json, write_json
from draftyard.artifacts.tensor_file import tensor_file
from draftyard.errors import ArtifactError

log = logging.getLogger(__name__)
KEPT = 2


@dataclass
class Position:
    """Where training stands. step: optimizer steps done. epoch: epochs finished. rows: the curves so far."""

    step: int = 0
    epoch: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_acceptance: float = 0.0
    best_epoch: int = 0


def save(directory: Path, position: Position, parameters: dict[str, Tensor], best: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]) -> None:
    """Write a resume point, and remove those before the last KEPT."""
    tensors = {f"model/{name}": p.detach().cpu().contiguous() for name, p in parameters.items()}
    tensors.update({f"best/{name}": p.cpu().contiguous() for name, p in best.items()})
    names = {id(p): name for name, p in parameters.items()}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"optimizer{number}/{names[id(parameter)]}/{key}"] = torch.as_tensor(value).detach().cpu().clone()
    path = directory / f"step-{position.step:08d}-{position.epoch:04d}.safetensors"  # the end of an epoch is a point of its own
    with tensor_file(path) as temporary:
        save_file(tensors, temporary)
    write_json(path.with_suffix(".json"), {"sha256": digest_file(path), "position": position.__dict__})
    kept = {file.stem for file in sorted(directory.glob("step-*.json"))[-KEPT:]}
    for other in directory.glob("step-*"):
        if other.stem not in kept:
            other.unlink()


def load(directory: Path, parameters: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]) -> tuple[Position, dict[str, Tensor]] | None:
    """Restore the last whole resume point into parameters and optimizers. Returns (position, best weights); None when there is none.

    A damaged point is left out, and the log says so.
    """
    for record in sorted(directory.glob("step-*.json"), reverse=True):
        path = record.with_suffix(".safetensors")
        try:
            state = read_json(record)
            if path.exists() and digest_file(path) == state["sha256"]:
                return Position(**state["position"]), _restore(path, parameters, optimizers)
        except (ArtifactError, KeyError, TypeError):
            pass
        log.warning("%s: the resume point is damaged; going on from the one before it", path)
    return None


def _restore(path: Path, parameters: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Put the tensors of a resume point where they belong. Returns the best weights."""
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"model/{name}"])
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = next(n for n, p in parameters.items() if p is parameter)
                prefix = f"optimizer{number}/{name}/"
                stored = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
                # "step" as well: the fused AdamW keeps it on the parameter's device.
                optimizer.state[parameter] = {key: tensor.to(parameter.device) for key, tensor in stored.items()}
    return {name.removeprefix("best/"): tensor for name, tensor in tensors.items() if name.startswith("best/")}
