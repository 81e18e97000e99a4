"""The loss of training-time test: KL divergence from the verifier's distribution, over the draft vocabulary, at the rows that carry it.

Shapes as in forward.py: B samples padded to S rows, H hidden size, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from draftyard.training.forward import RealRows, TttForward, rms_norm, select_rows

LOSS_ROWS = 128
"""Rows of logits held at a time: [128, V'] stays in a CPU's cache, where the passes over it are cheap."""


class SoftTargetLoss(torch.autograd.Function):
    """Cross-entropy of draft logits against the verifier's distribution, without ever holding all logits.

    forward(states [M, H], weight [V', H], targets [M, V'] probabilities, best [M], row_weights [M])
    -> (sum of row_weights * CE, right bool [M]): right where the draft's largest logit is that of token `best`.
    d/dlogits of CE is softmax(logits) - targets, so the gradients of states and weight are made chunk by chunk in
    the forward (the idea of Liger's fused linear cross-entropy) and only scaled in the backward.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, best: Tensor, row_weights: Tensor) -> tuple[Tensor, Tensor]:
        grad_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        grad_weight: Tensor | None = None
        right = torch.empty(len(states), dtype=torch.bool, device=states.device)
        loss = torch.zeros((), dtype=torch.float32, device=states.device)
        rows = LOSS_ROWS if states.device.type == "cpu" else 8 * LOSS_ROWS
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = (states[part] @ weight.T).float()  # (rows, V')
            right[part] = logits.gather(1, best[part, None])[:, 0] >= logits.amax(-1)
            log_p = torch.log_softmax(logits, dim=-1)
            loss -= (torch.linalg.vecdot(targets[part], log_p) * row_weights[part]).sum()
            gradient = log_p.exp_().sub_(targets[part]).mul_(row_weights[part, None])
            if grad_states is not None:
                grad_states[part] = gradient.to(weight.dtype) @ weight
            if ctx.needs_input_grad[1]:
                sides = gradient.T.to(weight.dtype), states[part].to(weight.dtype)
                grad_weight = torch.mm(*sides) if grad_weight is None else grad_weight.addmm_(*sides)
        if ctx.needs_input_grad[1] and grad_weight is None:
            grad_weight = torch.zeros_like(weight)
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_states, grad_weight = ctx.saved_tensors
        scale = grads[0]
        return (
            None if grad_states is None else grad_states.mul_(scale.to(grad_states.dtype)),  # in place: they are nobody else's
            None if grad_weight is None else grad_weight.mul_(scale.to(grad_weight.dtype)),
            None,
            None,
            None,
        )


@dataclass(frozen=True)
class TttBatch:
    """A padded batch after the alignment shift.

    aux: [B, S, 3H]. last: [B, S, H], the verifier's last state of row j's token. tokens: int64 [B, S]. weights: float32 [B, S],
    the loss weight of a row whose target comes from that row's last state; 0 on padding. later_weights: the same for the TTT
    steps after the first (None: equal). real: the rows that hold tokens (None: all).
    """

    aux: Tensor
    last: Tensor
    tokens: Tensor
    weights: Tensor
    later_weights: Tensor | None = None
    real: RealRows | None = None

    def without_loss(self) -> TttBatch:
        """The same rows, none of which teaches anything."""
        return replace(self, weights=torch.zeros_like(self.weights), later_weights=None)

    def target_weights(self, step: int) -> Tensor:
        """Loss weights [B, S] of step `step`, by target row."""
        return self.weights if step == 0 or self.later_weights is None else self.later_weights

    def row_weights(self, step: int) -> Tensor:
        """Loss weights [B, S] of step `step`, by drafting row: row j's target is row j + step; 0 past the end."""
        return _shifted(self.target_weights(step), step)

    def shifted_tokens(self, step: int) -> Tensor:
        """Teacher tokens [B, S] of a step: row j gets the token of row j + step, 0 past the end."""
        return _shifted(self.tokens, step)


def _shifted(rows: Tensor, step: int) -> Tensor:
    """[B, S] -> [B, S], moved `step` places to the front, 0 behind; all 0 where a batch is shorter than that."""
    return F.pad(rows[:, step:], (0, min(step, rows.shape[1])))


@dataclass(frozen=True)
class TttResult:
    """Sums over a batch. loss: scalar with gradient; loss_sums, correct_sums, weight_sums: one per step; correct counts rows right at all steps up to k."""

    loss: Tensor
    loss_sums: list[float]
    correct_sums: list[float]
    weight_sums: list[float]


def ttt_loss(
    forward: TttForward, batch: TttBatch, *, num_steps: int, decay: float, denominator: list[float] | None = None, accepted_only: bool = False
) -> TttResult:
    """KL divergence from the verifier over the draft vocabulary, summed over TTT steps with weight decay ** k.

    Step k compares row j's logits with the verifier's distribution at row j + k (speculators models/eagle3/metrics.py,
    align_for_step). Each step's loss is the weighted mean over rows; `denominator` overrides the sum of weights per step, so
    that micro-batches of one optimizer step add up to the same loss as a single batch. Of a single-layer draft only the rows
    that a loss asks for are computed: the others are read through their step-0 keys and values alone.

    accepted_only: a row goes on to the next step only while all of its guesses were the verifier's, as a round of drafting does
    when served; the rows that stop count 0 in the later steps' means.
    """
    model = forward.model
    row_weights = [batch.row_weights(k) for k in range(num_steps)]  # (B, S) each
    needed = [torch.stack([weights > 0 for weights in row_weights[k:]]).any(0) for k in range(num_steps)]  # (B, S) each
    rows = [select_rows(needed[0], None)] if len(model.layers) == 1 else None
    batch_size, length = batch.tokens.shape
    first_row = torch.arange(batch_size, device=batch.tokens.device)[:, None] * length  # flat index of each sample's row 0
    with torch.no_grad():
        used = torch.stack([batch.target_weights(k) > 0 for k in range(num_steps)]).any(0).reshape(-1).nonzero()[:, 0]  # (U,) flat rows that serve as a target
        place = torch.zeros(batch_size * length, dtype=torch.int64, device=used.device)
        place[used] = torch.arange(len(used), device=used.device)
        normed = rms_norm(batch.last.reshape(-1, batch.last.shape[-1])[used], model.verifier_norm)
        log_p = torch.log_softmax(F.linear(normed.to(model.verifier_lm_head.weight.dtype), model.verifier_lm_head.weight).float(), dim=-1)
        target_best = log_p.argmax(-1)
        targets = log_p.exp()  # (U, V')
        entropy = -torch.linalg.vecdot(targets, log_p)
        del log_p
    loss = torch.zeros((), device=batch.aux.device)
    loss_sums: list[float] = []
    correct_sums: list[float] = []
    weight_sums: list[float] = []
    right_so_far = torch.ones(batch_size * length, dtype=torch.bool, device=used.device)

    def tokens_of_step(k: int, _: Tensor | None) -> Tensor:
        shifted = batch.shifted_tokens(k)
        return shifted if rows is None or k == 0 else shifted.gather(1, rows[k].index)

    def on_step(k: int, states: Tensor) -> None:
        nonlocal loss
        flat = states.reshape(-1, states.shape[-1])
        if rows is None:
            asked = ((row_weights[k] > 0) & needed[k]).reshape(-1).nonzero()[:, 0]
            source = asked
        else:
            asked_here = rows[k].valid & (row_weights[k].gather(1, rows[k].index) > 0)  # (B, A)
            asked = asked_here.reshape(-1).nonzero()[:, 0]
            source = (first_row + rows[k].index).reshape(-1)[asked]  # flat rows of the batch
        weights = row_weights[k].reshape(-1)[source]
        wanted = place[source + k]
        # Where every target is asked for in order, nothing is copied.
        same = len(wanted) == len(used) and bool((wanted[1:] > wanted[:-1]).all())
        part = (targets, target_best) if same else (targets[wanted], target_best[wanted])
        cross_entropy, right = SoftTargetLoss.apply(flat[asked], model.lm_head.weight, *part, weights)
        divergence = cross_entropy - (entropy[wanted] * weights).sum()
        every_weight = float(row_weights[k].sum())
        total = every_weight if denominator is None else denominator[k]
        loss = loss + (decay**k) * divergence / max(total, 1e-5)
        with torch.no_grad():
            right_so_far[source] &= right
            correct_sums.append(float((right_so_far[source] * weights).sum()))
            loss_sums.append(float(divergence.detach()))
            weight_sums.append(every_weight)
            if k + 1 < num_steps:
                if accepted_only:
                    needed[k + 1] &= needed[k] & right_so_far.view(batch_size, length)
                if rows is not None:
                    rows.append(select_rows(needed[k + 1], needed[k]))

    forward.steps(batch.aux, tokens_of_step, num_steps, on_step, rows, batch.real)
    return TttResult(loss, loss_sums, correct_sums, weight_sums)
