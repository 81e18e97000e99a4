"""The training loop: one for a CPU, a GPU and several processes."""

from __future__ import annotations

import contextlib
import csv
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from draftyard.artifacts.files import atomic_writer
from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.draft.model import trainable_parameters
from draftyard.errors import DraftyardError
from draftyard.params.train import TrainParams
from draftyard.progress import Progress
from draftyard.training import resume
from draftyard.training.batches import Row, load_batch, plan_steps, split_micro, step_weights, usable_rows, without_loss
from draftyard.training.forward import TttForward
from draftyard.training.loss import TttBatch, TttResult, ttt_loss
from draftyard.training.optimizers import build_optimizers, decay_towards, learning_rate
from draftyard.training.sharding import Sharding, own, whole
from draftyard.verification.simulation import Simulation, simulate

CURVES_SECONDS = 10.0
"""How old the curves on disk may be while training runs."""


@dataclass(frozen=True)
class Trained:
    """What training gives back. The model holds the best weights. epochs: one entry each. samples/tokens: per epoch."""

    position: resume.Position
    samples: int
    tokens: int
    cut: int
    skipped: list[str]
    resumed_from: int


class Trainer:
    """Trains `model` on `data`; the device, the process group and the reduction over processes are accelerate's.

    work: directory for resume points; None disables them. csv_path: the curves, rewritten as they grow. sharding: fsdp leaves each
    process its share of the weights, gradients and optimizer states; on one process it changes nothing.
    """

    def __init__(
        self,
        model: Any,
        data: HiddenStates,
        params: TrainParams,
        *,
        micro_batch_tokens: int,
        accelerator: Any,
        autocast: torch.dtype | None = None,
        work: Path | None = None,
        csv_path: Path | None = None,
        checkpoint_every_steps: int = 1 << 30,
        sharding: Literal["none", "fsdp"] = "none",
    ) -> None:
        self.accelerator = accelerator
        self.device = accelerator.device
        shared_out = sharding == "fsdp" and accelerator.num_processes > 1
        self.sharding = Sharding(model, self.device) if shared_out else None  # first: the whole draft need not fit the device
        self.model = model if shared_out else model.to(self.device)
        self.data, self.params, self.micro = data, params, micro_batch_tokens
        self.autocast, self.work, self.csv_path, self.every = autocast, work, csv_path, checkpoint_every_steps
        self.forward = TttForward(self.model)
        self.parameters = trainable_parameters(self.model)
        self.optimizers = build_optimizers(self.parameters, params)
        # Taken before a resume point is restored: a model starts as the same weights each time.
        self.initial = {name: own(q.detach()).clone() for name, q in self.parameters.items()} if params.initial_weight_decay > 0 else {}
        self._curves_written = time.monotonic()

    def run(self) -> Trained:
        """Train all epochs, going on from the last resume point. Raises DraftyardError when no sample can be used."""
        p = self.params
        rows, skipped, cut = usable_rows(self.data.refs("train"), p.max_sample_tokens)
        rows, mute = without_loss(self.data, rows, p.prompt_loss_weight)
        skipped += mute
        holdout, _, _ = usable_rows(self.data.refs("holdout"), 1 << 30)
        self._require_usable(rows, skipped, holdout)
        plans = [plan_steps(rows, p.batch_tokens, p.seed, epoch) for epoch in range(p.epochs)]
        total = sum(len(plan) for plan in plans)
        position = resume.Position()
        best: dict[str, Tensor] = {}
        restored = resume.load(self.work, self.parameters, self.optimizers) if self.work else None
        if restored is not None:
            position, best = restored
        resumed_from = position.step
        stream = None if self.accelerator.is_main_process else Path(os.devnull).open("w")  # noqa: SIM115  # one line for all processes, while they run
        progress = Progress("train", total, "steps", done=position.step, stream=stream)
        first = sum(len(plan) for plan in plans[: position.epoch])
        for epoch in range(position.epoch, p.epochs):
            for index, step_rows in enumerate(plans[epoch]):
                if first + index < position.step:
                    continue
                row = self._step(step_rows, position.step, total, epoch)
                position.step += 1
                position.rows.append(row)
                self._show(position)
                progress.update(position.step, f"epoch {epoch + 1}/{p.epochs} loss {row['loss']:.3f} accuracy {row['accuracy_0']:.3f}")
                if position.step % self.every == 0:
                    self._checkpoint(position, best)
            first += len(plans[epoch])
            simulated = self.evaluate(holdout)
            tally = simulated.by_k[p.ttt_steps]
            acceptance = tally.acceptance_length
            position.epoch = epoch + 1
            losses = [r["loss"] for r in position.rows if r["epoch"] == epoch + 1]
            rates = [n / tally.rounds for n in tally.accepted] if tally.rounds else []
            entry = {"epoch": epoch + 1, "train_loss": sum(losses) / len(losses), "holdout_acceptance_length": acceptance, "holdout_acceptance_rates": rates}
            entry["holdout_categories"] = {name: {"rounds": t.rounds, "accepted": t.accepted} for name, t in sorted(simulated.categories.items())}
            position.epochs.append(entry)
            if acceptance > position.best_acceptance:
                position.best_acceptance, position.best_epoch = acceptance, epoch + 1
                best = {name: own(q.detach()).cpu().clone() for name, q in self.parameters.items()}
            self._checkpoint(position, best)
            self.accelerator.log({"holdout_acceptance_length": acceptance}, step=position.step)
            progress.update(position.step, f"epoch {epoch + 1}/{p.epochs} holdout acceptance length {acceptance:.3f}")
        progress.close(f"best holdout acceptance length {position.best_acceptance:.3f} (epoch {position.best_epoch})")
        with torch.no_grad():
            for name, q in self.parameters.items():
                own(q).copy_(best[name])
        return Trained(position, len(rows), sum(r.length for r in rows), cut, skipped, resumed_from)

    def evaluate(self, holdout: list[Row]) -> Simulation:
        """Simulated acceptance on the holdout with train.ttt_steps draft tokens."""
        k = self.params.ttt_steps

        def simulation() -> Simulation:
            return simulate(self.model, self.data, holdout, k=k, max_k=k, micro_tokens=self.micro, device=self.device)

        return simulation() if self.sharding is None else self.sharding.compute_gathered(simulation)

    def state(self) -> dict[str, Tensor]:
        """The model's whole tensors. Of a sharded model every process must ask, and the first one gets them."""
        tensors = self.model.state_dict()
        if self.sharding is None:
            return dict(tensors)
        gathered = {}
        for name, tensor in tensors.items():
            full = whole(tensor)
            if self.accelerator.is_main_process:
                gathered[name] = full
        return gathered

    def _require_usable(self, rows: list[Row], skipped: list[str], holdout: list[Row]) -> None:
        if not rows:
            raise DraftyardError(
                f"no training sample can be used: all {len(skipped)} have fewer than 3 tokens, or no token of the verifier's own within "
                f"train.max_sample_tokens={self.params.max_sample_tokens}; look at data/generations and reports/stages/generate.json"
            )
        if not holdout:
            raise DraftyardError("no holdout sample can be used: raise prompts.holdout_prompts")
        allowed = self.params.max_skipped_fraction * (len(rows) + len(skipped))
        if len(skipped) > allowed:
            raise DraftyardError(
                f"{len(skipped)} training samples are shorter than 3 tokens or carry no loss ({', '.join(skipped[:5])} ...), "
                f"train.max_skipped_fraction={self.params.max_skipped_fraction} allows {int(allowed)}"
            )

    def _step(self, rows: list[Row], step: int, total: int, epoch: int) -> dict[str, float]:
        """One optimizer step over `rows`, shared out over the processes. Returns the curve's row."""
        p = self.params
        lr = learning_rate(step, total, p)
        # A step's loss is a mean over all of its rows, however they are split into micro-batches and processes.
        denominators = step_weights(self.data, rows, p.prompt_loss_weight, p.ttt_steps).tolist()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        sums = self._reduce(self._gradients(rows, denominators))
        norm = whole(torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), p.max_grad_norm))
        if not bool(torch.isfinite(norm)):
            raise DraftyardError(f"optimizer step {step + 1}: the gradient is not finite; lower train.learning_rate or train.max_grad_norm")
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        decay_towards(self.parameters, self.initial, lr * p.initial_weight_decay)
        losses = [float(sums[0, k]) / max(denominators[k], 1e-5) for k in range(p.ttt_steps)]
        loss = sum(p.ttt_decay**k * value for k, value in enumerate(losses))
        row = {"step": step + 1, "epoch": epoch + 1, "loss": loss, "learning_rate": lr, "grad_norm": float(norm)}
        for k, value in enumerate(losses):
            row[f"loss_{k}"] = value
            row[f"accuracy_{k}"] = float(sums[1, k]) / max(denominators[k], 1e-5)
        return row

    def _gradients(self, rows: list[Row], denominators: list[float]) -> Tensor:
        """Give each parameter the gradient of the step. Returns the loss sums and correct rows of this process's micro-batches, [2, ttt_steps]."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        sums = torch.zeros(2, self.params.ttt_steps, device=self.device)
        micros = split_micro(rows, self.micro)
        mine = micros[rank::world]
        for micro in mine:
            result = self._backward(self._load(micro), denominators)
            sums += torch.tensor([result.loss_sums, result.correct_sums], device=self.device)
        if self.sharding is not None:
            if len(mine) < len(micros[::world]):  # the others gather and sum once more, which takes all processes
                self._backward(self._load(micros[-1]).without_loss(), denominators)
        elif world > 1:
            for parameter in self.parameters.values():
                gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                parameter.grad = self._reduce(gradient)
        return sums

    def _load(self, micro: list[Row]) -> TttBatch:
        return load_batch(self.data, micro, self.params.prompt_loss_weight, self.device, torch.float32)

    def _backward(self, batch: TttBatch, denominators: list[float]) -> TttResult:
        """Add a batch's gradient to the parameters'."""
        p = self.params

        def forward() -> tuple[Tensor, TttResult]:
            found = ttt_loss(self.forward, batch, num_steps=p.ttt_steps, decay=p.ttt_decay, denominator=denominators, accepted_only=p.ttt_rows == "accepted")
            return found.loss, found

        with self._precision():
            loss, result = forward() if self.sharding is None else self.sharding.compute(forward)
        loss.backward()
        return result

    def _reduce(self, tensor: Tensor) -> Tensor:
        return self.accelerator.reduce(tensor, reduction="sum") if self.accelerator.num_processes > 1 else tensor

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.autocast)

    def _show(self, position: resume.Position) -> None:
        """The newest step to accelerate's trackers, and every CURVES_SECONDS all of them to the CSV, which can be plotted while training runs."""
        self.accelerator.log({name: value for name, value in position.rows[-1].items() if name != "step"}, step=position.step)
        if self.csv_path is not None and self.accelerator.is_main_process and time.monotonic() - self._curves_written >= CURVES_SECONDS:
            write_curves(self.csv_path, position.rows)
            self._curves_written = time.monotonic()

    def _checkpoint(self, position: resume.Position, best: dict[str, Tensor]) -> None:
        first = self.accelerator.is_main_process
        if self.csv_path is not None and first:
            write_curves(self.csv_path, position.rows)
        if self.work is not None and (first or self.sharding is not None):
            resume.save(self.work, position, self.parameters, best, self.optimizers, write=first)


def write_curves(path: Path, rows: list[dict[str, float]]) -> None:
    """Write the curves as CSV, six significant digits. The columns' order is fixed here: rows of a resume point come back in another."""
    steps = sum(key.startswith("loss_") for key in rows[0]) if rows else 0
    columns = ["step", "epoch", "loss", "learning_rate", "grad_norm", *(f"{name}_{k}" for k in range(steps) for name in ("loss", "accuracy"))]
    with atomic_writer(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        if rows:
            writer.writerow(columns)
        for row in rows:
            writer.writerow([row[name] if isinstance(row[name], int) else f"{row[name]:.6g}" for name in columns])
