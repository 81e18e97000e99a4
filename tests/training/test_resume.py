"""The resume point: everything comes back, and a damaged one counts as none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftyard.training import resume
from draftyard.training.optimizers import build_optimizers
from draftyard.training.resume import Position
from tests.training.small import train_params


def parameters(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in {"a.weight": (4, 3), "norm.weight": (3,), "lm_head.weight": (5, 3)}.items()
    }


def stepped(kind: str, seed: int = 0) -> tuple[dict[str, Tensor], list[torch.optim.Optimizer]]:
    made = parameters(seed)
    optimizers = build_optimizers(made, train_params(optimizer=kind))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        step(made, optimizers, generator)
    return made, optimizers


def step(made: dict[str, Tensor], optimizers: list[torch.optim.Optimizer], generator: torch.Generator) -> None:
    for p in made.values():
        p.grad = torch.randn(p.shape, generator=generator)
    for optimizer in optimizers:
        optimizer.step()


POSITION = Position(step=3, epoch=1, rows=[{"step": 1, "epoch": 1, "loss": 1 / 3}], epochs=[{"epoch": 1, "train_loss": 0.1}], best_acceptance=1.7, best_epoch=1)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weights_optimizers_position_and_best_come_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    made, optimizers = stepped(kind)
    best = {name: p.detach().clone() * 2 for name, p in made.items()}
    resume.save(tmp_path, POSITION, made, best, optimizers)
    other = parameters(9)
    others = build_optimizers(other, train_params(optimizer=kind))
    restored = resume.load(tmp_path, other, others)
    assert restored is not None
    position, best_read = restored
    assert position == POSITION
    assert all(torch.equal(best_read[name], best[name]) for name in best)
    for continued in ((made, optimizers), (other, others)):
        step(*continued, torch.Generator().manual_seed(5))
        step(*continued, torch.Generator().manual_seed(6))
    assert all(torch.equal(made[name], other[name]) for name in made)


def test_only_the_last_point_is_kept(tmp_path: Path) -> None:
    made, optimizers = stepped("adamw")
    for number in (3, 6):
        resume.save(tmp_path, Position(step=number), made, {}, optimizers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.json", "step-00000006.safetensors"]
    restored = resume.load(tmp_path, made, optimizers)
    assert restored is not None
    assert restored[0].step == 6
    assert restored[1] == {}


def test_a_kill_between_the_tensors_and_the_state_leaves_the_point_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, optimizers = stepped("adamw")
    resume.save(tmp_path, Position(step=3), made, {}, optimizers)
    before = {name: p.detach().clone() for name, p in made.items()}
    step(made, optimizers, torch.Generator().manual_seed(1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(resume, "write_json", killed)
        resume.save(tmp_path, Position(step=4), made, {}, optimizers)
    restored = resume.load(tmp_path, made, optimizers)
    assert restored is not None
    assert restored[0].step == 3
    assert all(torch.equal(made[name], before[name]) for name in made)


def test_none_and_a_damaged_one(tmp_path: Path) -> None:
    made, optimizers = stepped("adamw")
    assert resume.load(tmp_path / "nowhere", made, optimizers) is None
    resume.save(tmp_path, POSITION, made, {}, optimizers)
    path = tmp_path / json.loads((tmp_path / "state.json").read_text())["file"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    before = {name: p.detach().clone() for name, p in made.items()}
    assert resume.load(tmp_path, made, optimizers) is None
    assert all(torch.equal(made[name], before[name]) for name in made)
    path.unlink()
    assert resume.load(tmp_path, made, optimizers) is None
