"""Optimizers and their schedule: AdamW, or Muon for matrices with AdamW for the rest."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from draftyard.params.train import TrainParams
from draftyard.training.sharding import cut, joined, own


class ShardedMuon(torch.optim.Muon):
    """Muon over sharded matrices, one gathered at a time: its orthogonalisation is one of whole matrices, and in bfloat16.

    torch.optim.Muon runs on DTensors too, but sums the shards' products in bfloat16, which moved losses by 4e-4.
    """

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        """One step, the same in every process; each keeps its part of the matrix and of its momentum."""
        for group in self.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                matrix = torch.nn.Parameter(parameter.full_tensor())
                matrix.grad = parameter.grad.full_tensor()
                whole = torch.optim.Muon([matrix], **options)
                whole.state[matrix] = {key: value.full_tensor() for key, value in self.state[parameter].items()}
                whole.step()
                own(parameter).copy_(cut(matrix, parameter))
                self.state[parameter] = {key: joined(cut(value, parameter), parameter) for key, value in whole.state[matrix].items()}


def build_optimizers(parameters: dict[str, Tensor], params: TrainParams) -> list[torch.optim.Optimizer]:
    """One optimizer (adamw) or two (muon, adamw). Weight decay touches matrices only; lm_head is never given to Muon."""
    matrices = {name: p for name, p in parameters.items() if p.ndim == 2}
    vectors = [p for name, p in parameters.items() if p.ndim != 2]
    betas = (params.adam_beta1, params.adam_beta2)
    optimizers: list[torch.optim.Optimizer] = []
    if params.optimizer == "muon":
        for_muon = [p for name, p in matrices.items() if not name.startswith("lm_head")]
        matrices = {name: p for name, p in matrices.items() if name.startswith("lm_head")}
        # match_rms_adamw: the update has AdamW's usual size, so one learning rate serves both.
        kind = ShardedMuon if any(isinstance(p, DTensor) for p in for_muon) else torch.optim.Muon
        optimizers.append(kind(for_muon, lr=params.learning_rate, weight_decay=params.weight_decay, adjust_lr_fn="match_rms_adamw"))
    groups = [{"params": list(matrices.values()), "weight_decay": params.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if groups:
        optimizers.append(torch.optim.AdamW(groups, lr=params.learning_rate, betas=betas, foreach=False, fused=True))
    return optimizers


def decay_towards(parameters: dict[str, Tensor], initial: dict[str, Tensor], rate: float) -> None:
    """Move each parameter by the fraction `rate` (at most 1) of its way back to `initial`, after an optimizer step: decoupled, as AdamW's decay to 0 is.

    initial: of a sharded parameter, this process's part.
    """
    with torch.no_grad():
        for name, start in initial.items():
            own(parameters[name]).lerp_(start, min(rate, 1.0))


def learning_rate(step: int, total_steps: int, params: TrainParams) -> float:
    """Linear warm-up to the peak, then a cosine down to min_learning_rate_ratio of it. `step` counts from 0."""
    warmup = min(params.warmup_steps, total_steps)
    if step < warmup:
        return params.learning_rate * (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    low = params.min_learning_rate_ratio
    return params.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))
