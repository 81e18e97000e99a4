"""The resume points: everything comes back, and a damaged one gives way to the one before it."""

from __future__ import annotations

import json
import os
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


def test_the_last_two_points_are_kept(tmp_path: Path) -> None:
    made, optimizers = stepped("adamw")
    for position in (Position(step=3), Position(step=6), Position(step=6, epoch=1)):
        resume.save(tmp_path, position, made, {}, optimizers)
    stems = ["step-00000006-0000", "step-00000006-0001"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{stem}.{suffix}" for stem in stems for suffix in ("json", "safetensors"))
    for path in tmp_path.glob("step-00000006-0001.*"):
        os.utime(path, (0, 0))  # a clock that went backwards decides nothing
    restored = resume.load(tmp_path, made, optimizers)
    assert restored is not None
    assert (restored[0].step, restored[0].epoch) == (6, 1)
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


def test_none(tmp_path: Path) -> None:
    made, optimizers = stepped("adamw")
    assert resume.load(tmp_path / "nowhere", made, optimizers) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "no tensors", "record", "no position"])
def test_a_damaged_point_gives_way_to_the_one_before_it_and_is_told(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, optimizers = stepped("adamw")
    resume.save(tmp_path, Position(step=3), made, {}, optimizers)
    before = {name: p.detach().clone() for name, p in made.items()}
    step(made, optimizers, torch.Generator().manual_seed(1))
    resume.save(tmp_path, Position(step=4), made, {}, optimizers)
    path, record = (tmp_path / f"step-00000004-0000.{suffix}" for suffix in ("safetensors", "json"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    if damage == "no tensors":
        path.unlink()
    elif damage in ("record", "no position"):
        record.write_text(record.read_text()[:-9] if damage == "record" else json.dumps({"sha256": json.loads(record.read_text())["sha256"]}))
    else:
        path.write_bytes(content if damage == "flip" else content[:-7])
    restored = resume.load(tmp_path, made, optimizers)
    assert restored is not None
    assert restored[0].step == 3
    assert all(torch.equal(made[name], before[name]) for name in made)
    assert "step-00000004-0000.safetensors: the resume point is damaged; going on from the one before it" in caplog.text


def test_all_points_damaged(tmp_path: Path) -> None:
    made, optimizers = stepped("adamw")
    resume.save(tmp_path, POSITION, made, {}, optimizers)
    (path,) = tmp_path.glob("*.safetensors")
    path.write_bytes(b"")
    before = {name: p.detach().clone() for name, p in made.items()}
    assert resume.load(tmp_path, made, optimizers) is None
    assert all(torch.equal(made[name], before[name]) for name in made)
