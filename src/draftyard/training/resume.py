"""The training's resume point: weights, optimizer state, position and curves, written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftyard.artifacts.files import digest_file, read_json, write_json

STATE_FILE = "state.json"


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
    """Write a resume point. The tensors go to a file named after the step; state.json, renamed last, makes it valid."""
    tensors = {f"model/{name}": p.detach().cpu().contiguous() for name, p in parameters.items()}
    tensors.update({f"best/{name}": p.cpu().contiguous() for name, p in best.items()})
    names = {id(p): name for name, p in parameters.items()}
    for number, optimizer in enumerate(optimizers):
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                tensors[f"optimizer{number}/{names[id(parameter)]}/{key}"] = torch.as_tensor(value).detach().cpu().clone()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step-{position.step:08d}.safetensors"
    temporary = directory / f".{path.name}.tmp"
    save_file(tensors, temporary)
    temporary.replace(path)
    write_json(directory / STATE_FILE, {"file": path.name, "sha256": digest_file(path), "position": position.__dict__})
    for other in directory.glob("step-*.safetensors"):
        if other.name != path.name:
            other.unlink()


def load(directory: Path, parameters: dict[str, Tensor], optimizers: list[torch.optim.Optimizer]) -> tuple[Position, dict[str, Tensor]] | None:
    """Restore the last resume point into parameters and optimizers. Returns (position, best weights); None when there is none or it is damaged."""
    if not (directory / STATE_FILE).exists():
        return None
    state = read_json(directory / STATE_FILE)
    path = directory / state["file"]
    if not path.exists() or digest_file(path) != state["sha256"]:
        return None
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
    best = {name.removeprefix("best/"): tensor for name, tensor in tensors.items() if name.startswith("best/")}
    return Position(**state["position"]), best
