"""Which tensor goes to which optimizer, and the learning rate at every step."""

from __future__ import annotations

import math

import pytest
import torch

from draftyard.draft.model import trainable_parameters
from draftyard.training.optimizers import build_optimizers, decay_towards, learning_rate
from tests.training.small import small_model, train_params


def groups(optimizer: str, trainable_lm_head: bool = True) -> dict[str, tuple[str, float]]:
    """Parameter name -> (optimizer, weight decay)."""
    parameters = trainable_parameters(small_model(trainable_lm_head=trainable_lm_head))
    names = {id(p): name for name, p in parameters.items()}
    found = {}
    for made in build_optimizers(parameters, train_params(optimizer=optimizer, weight_decay=0.1)):
        for group in made.param_groups:
            for p in group["params"]:
                assert names[id(p)] not in found
                found[names[id(p)]] = (type(made).__name__, group["weight_decay"])
    assert set(found) == set(parameters)
    return found


def test_adamw_decays_matrices_only() -> None:
    for name, (kind, decay) in groups("adamw").items():
        assert kind == "AdamW"
        assert decay == (0.0 if "norm" in name else 0.1), name


@pytest.mark.parametrize("trainable_lm_head", [True, False])
def test_muon_gets_the_matrices_but_never_lm_head(trainable_lm_head: bool) -> None:
    for name, (kind, decay) in groups("muon", trainable_lm_head).items():
        assert kind == ("AdamW" if "norm" in name or name == "lm_head.weight" else "Muon"), name
        assert decay == (0.0 if "norm" in name else 0.1), name


def test_the_first_step_of_adamw_moves_every_weight_by_the_learning_rate() -> None:
    parameters = {"w": torch.nn.Parameter(torch.tensor([[1.0, -2.0]]))}
    (optimizer,) = build_optimizers(parameters, train_params(learning_rate=0.01, weight_decay=0.0))
    parameters["w"].grad = torch.tensor([[0.3, -4.0]])
    optimizer.step()
    assert parameters["w"].tolist() == [pytest.approx([0.99, -1.99], abs=1e-6)]


def test_warm_up_then_cosine() -> None:
    params = train_params(learning_rate=0.1, warmup_steps=4, min_learning_rate_ratio=0.2)
    rates = [learning_rate(step, 14, params) for step in range(14)]
    assert rates[:5] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert rates[9] == pytest.approx(0.1 * (0.2 + 0.8 * 0.5))  # half way: the middle between peak and floor
    assert rates[13] == pytest.approx(0.1 * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 0.9))))
    assert all(a >= b for a, b in zip(rates[4:], rates[5:], strict=False))
    assert min(rates[4:]) >= 0.02


def test_short_trainings() -> None:
    assert [learning_rate(step, 2, train_params(learning_rate=0.1, warmup_steps=20)) for step in range(2)] == pytest.approx([0.05, 0.1])
    assert learning_rate(0, 1, train_params(learning_rate=0.1, warmup_steps=0)) == pytest.approx(0.1)


def test_decay_towards_the_initial_weights() -> None:
    weights, start = {"w": torch.nn.Parameter(torch.tensor([3.0, -1.0]))}, {"w": torch.tensor([1.0, 1.0])}
    decay_towards(weights, start, 0.25)
    assert weights["w"].tolist() == [2.5, -0.5]
    decay_towards(weights, start, 7.0)  # never past them
    assert weights["w"].tolist() == [1.0, 1.0]
