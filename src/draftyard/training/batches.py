"""From captured samples to padded batches: grouped by length, never one sample attending to another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from draftyard.artifacts.hidden_states import HiddenStates, Sample, SampleRef
from draftyard.training.forward import RealRows
from draftyard.training.loss import TttBatch


@dataclass(frozen=True)
class Row:
    """A sample as training sees it: where it lies, and how many tokens of it are used."""

    ref: SampleRef
    length: int


def usable_rows(refs: list[SampleRef], max_tokens: int) -> tuple[list[Row], list[str], int]:
    """Rows of at least 3 tokens, cut to `max_tokens`. Returns (rows, names of samples too short, number cut)."""
    rows, short, cut = [], [], 0
    for ref in refs:
        if ref.length < 3:
            short.append(f"{ref.id}/{ref.sample}")
            continue
        cut += ref.length > max_tokens
        rows.append(Row(ref, min(ref.length, max_tokens)))
    return rows, short, cut


def without_loss(data: HiddenStates, rows: list[Row], prompt_weight: float) -> tuple[list[Row], list[str]]:
    """Take out the rows that teach nothing (all of their weights are 0). Returns (rows, names of those taken out).

    A prompt weight above 0 gives every row a loss, so nothing is read then.
    """
    if prompt_weight > 0:
        return rows, []
    kept, names = [], []
    for row in rows:
        if bool(data.loss_mask(row.ref)[1 : row.length].any()):
            kept.append(row)
        else:
            names.append(f"{row.ref.id}/{row.ref.sample}")
    return kept, names


def plan_steps(rows: list[Row], batch_tokens: int, seed: int, epoch: int) -> list[list[Row]]:
    """Rows of each optimizer step of an epoch: shuffled, then filled up to `batch_tokens`."""
    order = rows[:]
    random.Random(f"{seed}/{epoch}").shuffle(order)
    steps: list[list[Row]] = []
    size = batch_tokens
    for row in order:
        if size + row.length > batch_tokens or not steps:
            steps.append([])
            size = 0
        steps[-1].append(row)
        size += row.length
    return steps


def split_micro(rows: list[Row], micro_tokens: int) -> list[list[Row]]:
    """Group one step's rows by similar length so that each padded batch holds at most `micro_tokens` (at least one row)."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: (-r.length, r.ref.file, r.ref.start)):
        longest = groups[-1][0].length if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= micro_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def token_weights(loss_mask: torch.Tensor, prompt_weight: float, step: int = 0) -> torch.Tensor:
    """Loss weight of each token at TTT step `step`, float32 [T]: 1 on the verifier's own tokens, elsewhere `prompt_weight` at step 0
    and 0 later (a prompt teaches what follows what; drafting ahead is learned, and paid for, on answers). loss_mask: bool [T].
    """
    return torch.where(loss_mask, 1.0, prompt_weight if step == 0 else 0.0)


def step_weights(data: HiddenStates, rows: list[Row], prompt_weight: float, num_steps: int) -> torch.Tensor:
    """Sum of loss weights of each TTT step over the rows, float32 [num_steps]: step k loses the first k rows of every sample.

    Reads the loss masks alone, so that the states need not be in memory before their turn.
    """
    totals = torch.zeros(num_steps)
    for row in rows:
        mask = data.loss_mask(row.ref)
        totals += torch.stack([token_weights(mask, prompt_weight, k)[1 + k : row.length].sum() for k in range(num_steps)])
    return totals


def make_batch(samples: list[Sample], lengths: list[int], prompt_weight: float, device: torch.device, dtype: torch.dtype) -> TttBatch:
    """Pad samples (cut to `lengths`) to one batch with the alignment shift of TttBatch."""
    rows = max(lengths) - 1
    width, hidden = samples[0].aux.shape[1], samples[0].last.shape[1]
    aux = torch.zeros(len(samples), rows, width, dtype=dtype)
    last = torch.zeros(len(samples), rows, hidden, dtype=dtype)
    tokens = torch.zeros(len(samples), rows, dtype=torch.int64)
    weights = torch.zeros(len(samples), rows, dtype=torch.float32)
    later_weights = torch.zeros_like(weights)
    for i, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        n = length - 1
        aux[i, :n] = sample.aux[:n]
        last[i, :n] = sample.last[1:length]
        tokens[i, :n] = sample.token_ids[1:length]
        weights[i, :n] = token_weights(sample.loss_mask, prompt_weight)[1:length]
        later_weights[i, :n] = token_weights(sample.loss_mask, prompt_weight, 1)[1:length]
    real = RealRows.of([length - 1 for length in lengths], rows, device)
    return TttBatch(aux.to(device), last.to(device), tokens.to(device), weights.to(device), later_weights.to(device), real)


def load_batch(data: HiddenStates, rows: list[Row], prompt_weight: float, device: torch.device, dtype: torch.dtype) -> TttBatch:
    """Read the rows' samples and pad them."""
    return make_batch([data.load(row.ref) for row in rows], [row.length for row in rows], prompt_weight, device, dtype)


def length_batches(rows: list[Row], micro_tokens: int) -> Iterator[list[Row]]:
    """All rows once, grouped by length (for evaluation)."""
    yield from split_micro(rows, micro_tokens)
