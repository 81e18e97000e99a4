"""The training loop on a tiny data set: the same figures however a step is split, and however often it is killed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftyard.artifacts.hidden_states import HiddenStates, Sample
from draftyard.draft.model import trainable_parameters
from draftyard.errors import DraftyardError
from draftyard.training import loop
from draftyard.training.batches import plan_steps, usable_rows
from draftyard.training.loop import Trained, Trainer, write_curves
from draftyard.verification.simulation import Simulation, Tally
from tests.training.small import FakeAccelerator, named_samples, run_killed, small_model, train_params, write_data

TRAIN, HOLDOUT = [12, 20, 7, 16, 9, 25, 3, 14], [10, 15]


@pytest.fixture
def data(tmp_path: Path) -> HiddenStates:
    return write_data(tmp_path / "data", named_samples("t", TRAIN), named_samples("h", HOLDOUT, seed=6))


def trainer(data: HiddenStates, *, micro: int = 40, model: Any = None, **options: Any) -> Trainer:
    params = train_params(**options.pop("params", {}))
    model = small_model(large=False, trainable_lm_head=params.trainable_lm_head) if model is None else model
    return Trainer(model, data, params, micro_batch_tokens=micro, accelerator=FakeAccelerator(), **options)


def weights(made: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in made.parameters.items()}


# --- one step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt_loss_weight", [0.0, 0.5, 1.0])
def test_a_step_in_micro_batches_equals_one_batch(prompt_loss_weight: float, data: HiddenStates) -> None:
    rows, _, _ = usable_rows(data.refs("train"), 64)
    found = []
    for micro in (1, 30, 60, 10_000):
        made = trainer(data, micro=micro, params={"prompt_loss_weight": prompt_loss_weight, "max_grad_norm": 1e9})
        row = made._step(rows, 0, 10, 0)
        found.append((row, {name: p.grad.clone() for name, p in made.parameters.items()}))
    for row, gradients in found[:-1]:
        assert row == pytest.approx(found[-1][0], rel=1e-5)
        for name, gradient in gradients.items():
            expected = found[-1][1][name]
            assert float((gradient - expected).norm()) <= 1e-5 * float(expected.norm()), name


def test_two_processes_share_a_step_as_one_would_do_it_alone(data: HiddenStates) -> None:
    """The reduction is a sum over processes; here the second process is run by hand and its tensors are added."""
    rows, _, _ = usable_rows(data.refs("train"), 64)
    alone = trainer(data, micro=30, params={"max_grad_norm": 1e9})
    expected = alone._step(rows, 0, 10, 0)
    reduced: list[list[Tensor]] = [[], []]

    class Half(FakeAccelerator):
        def __init__(self, rank: int, others: list[Tensor] | None) -> None:
            super().__init__()
            self.num_processes, self.process_index, self.others = 2, rank, others

        def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
            assert reduction == "sum"
            reduced[self.process_index].append(tensor.clone())
            return tensor if self.others is None else tensor + self.others[len(reduced[self.process_index]) - 1]

    second = trainer(data, micro=30, params={"max_grad_norm": 1e9})
    second.accelerator = Half(1, None)
    second._step(rows, 0, 10, 0)
    first = trainer(data, micro=30, params={"max_grad_norm": 1e9})
    first.accelerator = Half(0, reduced[1])
    assert first._step(rows, 0, 10, 0) == pytest.approx(expected, rel=1e-5)
    for name, p in first.parameters.items():
        torch.testing.assert_close(p.grad, alone.parameters[name].grad, rtol=1e-4, atol=1e-7)


def test_a_process_without_a_row_takes_part(data: HiddenStates) -> None:
    rows, _, _ = usable_rows(data.refs("train"), 64)

    class Idle(FakeAccelerator):
        def __init__(self) -> None:
            super().__init__()
            self.num_processes, self.process_index, self.calls = 2, 1, 0

        def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
            self.calls += 1
            return tensor

    made = trainer(data, micro=10_000)
    made.accelerator = Idle()
    made._step(rows, 0, 10, 0)
    assert made.accelerator.calls == 1 + len(made.parameters)  # as many as the process that does the work


def test_frozen_tensors_stay(data: HiddenStates) -> None:
    model = small_model(large=False, trainable_lm_head=False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer(data, model=model, params={"trainable_lm_head": False}).run()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(trainable_parameters(model))
    assert "lm_head.weight" not in moved


# --- a whole training -----------------------------------------------------------------------------------------------


def test_the_decay_pulls_towards_the_weights_that_training_began_with(data: HiddenStates) -> None:
    """So strong (learning rate 0.01 x 100: all of the way back) that the step leaves what there was before it."""
    rows, _, _ = usable_rows(data.refs("train"), 64)
    free, held = (trainer(data, params={"learning_rate": 0.01, "warmup_steps": 1, "initial_weight_decay": decay}) for decay in (0.0, 100.0))
    before = weights(held)
    for made in (free, held):
        made._step(rows, 0, 10, 0)
    assert all(torch.equal(after, before[name]) for name, after in weights(held).items())
    assert not any(torch.equal(after, before[name]) for name, after in weights(free).items())


def test_the_loss_goes_down_and_the_curves_say_so(data: HiddenStates, tmp_path: Path) -> None:
    trained = trainer(data, params={"epochs": 6, "learning_rate": 0.01}, csv_path=tmp_path / "curves.csv").run()
    losses = [epoch["train_loss"] for epoch in trained.position.epochs]
    assert losses[-1] < 0.7 * losses[0]
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert len(rows) == trained.position.step
    assert list(rows[0]) == ["step", "epoch", "loss", "learning_rate", "grad_norm", "loss_0", "accuracy_0", "loss_1", "accuracy_1", "loss_2", "accuracy_2"]
    assert [row["step"] for row in rows] == [str(number + 1) for number in range(len(rows))]
    assert float(rows[-1]["accuracy_0"]) > float(rows[0]["accuracy_0"])
    for row in rows:
        parts = sum(0.8**k * float(row[f"loss_{k}"]) for k in range(3))
        assert float(row["loss"]) == pytest.approx(parts, rel=1e-4)
        assert all(0 <= float(row[f"accuracy_{k}"]) <= 1 for k in range(3))


def test_every_sample_is_seen_once_per_epoch(data: HiddenStates, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    load_batch = loop.load_batch

    def recording(data: HiddenStates, rows: Any, *rest: Any) -> Any:
        seen.extend(row.ref.id for row in rows)
        return load_batch(data, rows, *rest)

    monkeypatch.setattr(loop, "load_batch", recording)
    trained = trainer(data, params={"epochs": 3}).run()
    everyone = sorted(ref.id for ref in data.refs("train"))
    for epoch in range(3):
        assert sorted(seen[epoch * len(everyone) : (epoch + 1) * len(everyone)]) == everyone
    assert (trained.samples, trained.tokens, trained.cut, trained.skipped) == (len(TRAIN), sum(TRAIN), 0, [])


def test_long_samples_are_cut_and_counted(data: HiddenStates) -> None:
    trained = trainer(data, params={"epochs": 1, "max_sample_tokens": 14}).run()
    assert (trained.cut, trained.tokens) == (3, sum(min(length, 14) for length in TRAIN))


def test_the_best_epoch_is_what_the_model_ends_with(data: HiddenStates, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[dict[str, Tensor]] = []
    tallies = iter([Tally(10, [2, 0]), Tally(10, [6, 3]), Tally(10, [9, 0]), Tally(10, [5, 0])])

    def evaluate(self: Trainer, holdout: Any) -> Simulation:
        kept.append(weights(self))
        tally = next(tallies)
        return Simulation({3: tally}, {"chat": tally}, {"chat": 2}, [])

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    made = trainer(data, params={"epochs": 4})
    trained = made.run()
    assert (trained.position.best_epoch, trained.position.best_acceptance) == (2, 1.9)
    assert [e["holdout_acceptance_length"] for e in trained.position.epochs] == [1.2, 1.9, 1.9, 1.5]
    assert [e["holdout_acceptance_rates"] for e in trained.position.epochs] == [[0.2, 0.0], [0.6, 0.3], [0.9, 0.0], [0.5, 0.0]]
    assert trained.position.epochs[1]["holdout_categories"] == {"chat": {"rounds": 10, "accepted": [6, 3]}}
    assert all(torch.equal(p, kept[1][name]) for name, p in weights(made).items())
    assert not all(torch.equal(p, kept[3][name]) for name, p in weights(made).items())


def test_training_twice_gives_the_same_bits(data: HiddenStates) -> None:
    results = []
    for _ in range(2):
        made = trainer(data)
        results.append((made.run().position, weights(made)))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(p, results[1][1][name]) for name, p in results[0][1].items())


# --- kill and resume ------------------------------------------------------------------------------------------------


def total_steps(data: HiddenStates, epochs: int) -> int:
    rows, _, _ = usable_rows(data.refs("train"), 64)
    return sum(len(plan_steps(rows, 30, 0, epoch)) for epoch in range(epochs))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_training_ends_with_the_same_bits(optimizer: str, data: HiddenStates, tmp_path: Path) -> None:
    params = {"epochs": 3, "optimizer": optimizer, "initial_weight_decay": 0.5}

    def begun(work: Path) -> Trainer:
        return trainer(data, params=params, work=work / "resume", csv_path=work / "curves.csv", checkpoint_every_steps=2)

    def finish(work: Path) -> tuple[Trained, dict[str, Tensor], bytes]:
        made = begun(work)
        trained = made.run()
        write_curves(work / "final.csv", trained.position.rows)
        return trained, weights(made), (work / "final.csv").read_bytes()

    plain, expected, curves = finish(tmp_path / "plain")
    total = total_steps(data, 3)
    per_epoch = total // 3
    assert plain.position.step == total > 8
    assert plain.resumed_from == 0
    for number, kill in enumerate([3, per_epoch + 1, per_epoch + 2, total]):
        work = tmp_path / f"killed{number}"
        run_killed(begun(work), kill)
        if number == 0:
            run_killed(begun(work), per_epoch + 2)  # and once more, later
        trained, found, found_curves = finish(work)
        assert trained.resumed_from > 0
        assert found_curves == curves == (work / "curves.csv").read_bytes()
        assert trained.position == plain.position
        assert all(torch.equal(p, expected[name]) for name, p in found.items())


def test_a_training_that_had_finished_is_not_trained_again(data: HiddenStates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer(data, work=tmp_path / "resume")
    first = made.run()
    monkeypatch.setattr(Trainer, "_step", None)
    again = trainer(data, work=tmp_path / "resume")
    assert again.run().position == first.position
    assert all(torch.equal(p, weights(again)[name]) for name, p in weights(made).items())


def test_columns_of_the_curves_do_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    row = {"step": 1, "epoch": 1, "loss": 0.5, "learning_rate": 1e-3, "grad_norm": 2.0, "loss_0": 0.5, "accuracy_0": 1 / 3}
    shuffled = dict(sorted({**row, "step": 2}.items()))
    write_curves(tmp_path / "c.csv", [shuffled, {**row, "step": 3}])
    assert (tmp_path / "c.csv").read_text().splitlines() == [
        "step,epoch,loss,learning_rate,grad_norm,loss_0,accuracy_0",
        "2,1,0.5,0.001,2,0.5,0.333333",
        "3,1,0.5,0.001,2,0.5,0.333333",
    ]
    write_curves(tmp_path / "c.csv", [])
    assert (tmp_path / "c.csv").read_text() == ""


# --- refusals -------------------------------------------------------------------------------------------------------


def muted(samples: list[Sample], *numbers: int) -> list[Sample]:
    return [Sample(**{**s.__dict__, "loss_mask": torch.zeros_like(s.loss_mask)}) if i in numbers else s for i, s in enumerate(samples)]


def test_no_usable_sample_is_an_error_and_not_a_loss_of_zero(tmp_path: Path) -> None:
    short = write_data(tmp_path / "short", named_samples("t", [2, 2, 1]), named_samples("h", HOLDOUT))
    with pytest.raises(DraftyardError, match="no training sample can be used: all 3 have fewer than 3 tokens"):
        trainer(short).run()
    silent = write_data(tmp_path / "silent", muted(named_samples("t", [9, 9]), 0, 1), named_samples("h", HOLDOUT))
    with pytest.raises(DraftyardError, match="no training sample can be used: all 2 .*no token of the verifier's own"):
        trainer(silent, params={"prompt_loss_weight": 0.0, "max_skipped_fraction": 1.0}).run()


def test_an_empty_holdout_is_an_error(tmp_path: Path) -> None:
    data = write_data(tmp_path, named_samples("t", TRAIN), [])
    with pytest.raises(DraftyardError, match="no holdout sample can be used"):
        trainer(data).run()


def test_samples_without_a_loss_are_counted_named_and_bounded(tmp_path: Path) -> None:
    data = write_data(tmp_path, [*muted(named_samples("t", [9, 9, 9, 9, 9, 9]), 1, 4), *named_samples("u", [2, 9])], named_samples("h", HOLDOUT))
    options = {"epochs": 1, "prompt_loss_weight": 0.0}
    with pytest.raises(DraftyardError, match=r"3 training samples .*\(u0/0, t1/0, t4/0 \.\.\.\), train.max_skipped_fraction=0.3 allows 2"):
        trainer(data, params={**options, "max_skipped_fraction": 0.3}).run()
    trained = trainer(data, params={**options, "max_skipped_fraction": 0.4}).run()
    assert (trained.skipped, trained.samples) == (["u0/0", "t1/0", "t4/0"], 5)
    assert trainer(data, params={**options, "prompt_loss_weight": 0.5, "max_skipped_fraction": 0.2}).run().skipped == ["u0/0"]


def test_a_gradient_that_is_not_finite_stops_the_training(data: HiddenStates) -> None:
    made = trainer(data, params={"epochs": 1})
    with torch.no_grad():
        made.parameters["fc.weight"][0, 0] = float("nan")
    with pytest.raises(DraftyardError, match="optimizer step 1: the gradient is not finite; lower train.learning_rate"):
        made.run()
