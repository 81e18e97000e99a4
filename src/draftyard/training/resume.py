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
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftyard.artifacts.files import digest_file, read_json, write_json
from draftyard.artifacts.tensor_file import tensor_file
from draftyard.errors import ArtifactError
from draftyard.training.sharding import cut, joined, own, whole

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


def save(
    directory: Path,
    position: Position,
    parameters: dict[str, Tensor],
    best: dict[str, Tensor],
    optimizers: list[torch.optim.Optimizer],
    *,
    write: bool = True,
) -> None:
    """Write a resume point, and remove those before the last KEPT.

    best: this process's part of each. write: False on the processes that only take part in gathering sharded tensors.
    """
    tensors = _gather(parameters, best, optimizers, keep=write)
    if not write:
        return
    path = directory / f"step-{position.step:08d}-{position.epoch:04d}.safetensors"  # the end of an epoch is a point of its own
    with tensor_file(path) as temporary:
        save_file(tensors, temporary)
    write_json(path.with_suffix(".json"), {"sha256": digest_file(path), "position": position.__dict__})
    kept = {file.stem for file in sorted(directory.glob("step-*.json"))[-KEPT:]}
    for other in directory.glob("step-*"):
        if other.stem not in kept:
            other.unlink()


def _gather(parameters: dict[str, Tensor], best: dict[str, Tensor], optimizers: list[torch.optim.Optimizer], *, keep: bool) -> dict[str, Tensor]:
    """The whole tensors of a resume point by name, one after the other; empty without `keep`."""
    tensors: dict[str, Tensor] = {}

    def add(key: str, tensor: Tensor) -> None:
        full = whole(tensor)
        if keep:
            tensors[key] = full

    for name, p in parameters.items():
        add(f"model/{name}", p)
    for name, p in best.items():
        add(f"best/{name}", joined(p, parameters[name]))
    names = {id(p): name for name, p in parameters.items()}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                add(f"optimizer{number}/{names[id(parameter)]}/{key}", torch.as_tensor(value))
    return tensors


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
    """Put the tensors of a resume point where they belong. Returns this process's part of the best weights."""
    names = {id(p): name for name, p in parameters.items()}
    with safe_open(path, "pt") as file, torch.no_grad():
        keys = file.keys()

        def part(key: str, parameter: Tensor) -> Tensor:
            return cut(file.get_tensor(key), parameter)

        for name, parameter in parameters.items():
            own(parameter).copy_(part(f"model/{name}", parameter))
        for number, optimizer in enumerate(optimizers):
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                prefix = f"optimizer{number}/{names[id(parameter)]}/"
                stored = {key.removeprefix(prefix): part(key, parameter) for key in keys if key.startswith(prefix)}
                # "step" as well: the fused AdamW keeps it on the parameter's device.
                optimizer.state[parameter] = {key: joined(tensor, parameter).to(parameter.device) for key, tensor in stored.items()}
        return {name: part(f"best/{name}", parameter) for name, parameter in parameters.items() if f"best/{name}" in keys}
