"""Acceptance without an engine: drafting at every position of known greedy text, then walking the text.

The verifier's greedy continuation of a holdout prompt is the text itself, so a draft token is accepted exactly when it
equals the text. All rounds come out of one batched pass of k free steps: each step feeds the draft's own token (mapped
through d2t) and its own state, as serving does. The walk then visits the positions that serving would visit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from draftyard.artifacts.hidden_states import HiddenStates, Sample
from draftyard.training.batches import Row, length_batches, make_batch
from draftyard.training.forward import StepRows, TttForward, select_rows


@dataclass
class Tally:
    """Drafting counts. accepted[i]: rounds whose draft tokens 0..i were all accepted (vLLM's num_accepted_tokens_per_pos)."""

    rounds: int = 0
    accepted: list[int] = field(default_factory=list)

    def add(self, length: int, k: int) -> None:
        """Count one round of k draft tokens of which the first `length` were accepted."""
        if len(self.accepted) < k:
            self.accepted += [0] * (k - len(self.accepted))
        self.rounds += 1
        for i in range(length):
            self.accepted[i] += 1

    @property
    def acceptance_length(self) -> float:
        """1 + accepted tokens / rounds, vLLM's counting; 1.0 without rounds."""
        return 1 + sum(self.accepted) / self.rounds if self.rounds else 1.0

    def merge(self, other: Tally) -> None:
        """Add another tally's counts."""
        self.accepted += [0] * (len(other.accepted) - len(self.accepted))
        self.rounds += other.rounds
        for i, n in enumerate(other.accepted):
            self.accepted[i] += n


def walk(matches: Tensor, start: int, end: int, k: int, on_round: Callable[[int, int], None]) -> None:
    """Visit the rounds of one sample.

    matches: bool [S, K], row j's draft token i equals the text. start: row of the last prompt token. end: rows from here on
    hold no round (their input is the last token of the text). on_round(row, accepted) is called per round.
    """
    lengths = matches[:, :k].to(torch.int64).cumprod(-1).sum(-1).tolist()
    row = start
    while row < end:
        on_round(row, lengths[row])
        row += lengths[row] + 1


@torch.inference_mode()
def draft_matches(forward: TttForward, samples: list[Sample], k: int, device: torch.device, starts: list[int] | None = None) -> Tensor:
    """bool [B, S, k]: whether the i-th draft token of a round starting at row j equals the text. Past the end: False.

    starts: the first row asked for of each sample; those before it, which a single-layer draft then need not compute, come out False.
    """
    model = forward.model
    lengths = [len(s.token_ids) for s in samples]
    batch = make_batch(samples, lengths, 1.0, device, torch.float32)
    tokens = batch.tokens  # (B, S)
    proposals: list[Tensor] = []
    rows: list[StepRows] | None = None
    if starts is not None and len(model.layers) == 1:
        every = torch.arange(tokens.shape[1], device=device)
        asked = (every >= torch.tensor(starts, device=device)[:, None]) & (every < torch.tensor(lengths, device=device)[:, None] - 1)  # (B, S)
        rows = [select_rows(asked, None), *[select_rows(asked, asked)] * (k - 1)]

    def tokens_of_step(step: int, previous: Tensor | None) -> Tensor:
        return tokens if previous is None else previous

    def on_step(step: int, states: Tensor) -> Tensor:
        best = (states @ model.lm_head.weight.T).argmax(-1)  # (B, S) draft ids
        ids = best + model.d2t[best] if model.use_draft_vocab else best
        if rows is None:
            proposals.append(ids)
        else:
            placed = torch.full_like(tokens, -1)
            placed[asked] = ids[rows[0].valid]  # both in order of samples and rows
            proposals.append(placed)
        return ids

    forward.steps(batch.aux, tokens_of_step, k, on_step, rows, batch.real)
    matches = torch.zeros(*tokens.shape, k, dtype=torch.bool, device=device)
    for i, ids in enumerate(proposals):
        # Row j holds x[j + 1]; proposal i guesses x[j + 2 + i], which is row j + 1 + i.
        known = max(tokens.shape[1] - 1 - i, 0)
        matches[:, :known, i] = ids[:, :known] == tokens[:, 1 + i :]
    for row, length in enumerate(lengths):
        for i in range(k):
            matches[row, max(length - 2 - i, 0) :, i] = False
    return matches


@dataclass(frozen=True)
class Round:
    """One simulated round: its sample, its row, and how many draft tokens of k were accepted."""

    sample: int
    row: int
    accepted: int


@dataclass
class Simulation:
    """Tallies for every k = 1..max_k; at `k` also per category and per sample, and each round with where it happened.

    positions: (tokens since the answer's start, accepted) per round. contexts: (tokens before the first draft token, accepted).
    samples: (category, id, sample number) -> tally.
    """

    by_k: dict[int, Tally]
    categories: dict[str, Tally]
    category_prompts: dict[str, int]
    positions: list[tuple[int, int]]
    contexts: list[tuple[int, int]] = field(default_factory=list)
    samples: dict[tuple[str, str, int], Tally] = field(default_factory=dict)


def simulate(model: Any, data: HiddenStates, rows: list[Row], *, k: int, max_k: int, micro_tokens: int, device: torch.device) -> Simulation:
    """Simulate drafting over the last answer of each row's sample, for 1..max_k draft tokens; categories and positions are kept at `k`.

    Only the last answer of a conversation is walked (it is what serving generates).
    """
    forward = TttForward(model)
    result = Simulation({n: Tally() for n in range(1, max_k + 1)}, {}, {}, [])
    for group in length_batches(rows, micro_tokens):
        samples = [data.load(row.ref) for row in group]
        starts = [max(answer_start(sample) - 1, 0) for sample in samples]
        matches = draft_matches(forward, samples, max_k, device, starts).cpu()
        for i, (sample, start) in enumerate(zip(samples, starts, strict=True)):
            end = len(sample.token_ids) - 2
            tally = result.categories.setdefault(sample.category, Tally())
            result.category_prompts[sample.category] = result.category_prompts.get(sample.category, 0) + 1
            own = result.samples.setdefault((sample.category, group[i].ref.id, group[i].ref.sample), Tally(accepted=[0] * k))
            for n, overall in result.by_k.items():

                def on_round(row: int, accepted: int, n: int = n, overall: Tally = overall, at_k: tuple[Tally, ...] = (tally, own), start: int = start) -> None:
                    overall.add(accepted, n)
                    if n == k:
                        for one in at_k:
                            one.add(accepted, n)
                        result.positions.append((row - start, accepted))
                        result.contexts.append((row + 2, accepted))  # row j holds token j + 1; the first proposal stands at j + 2

                walk(matches[i], start, end, n, on_round)
    return result


def answer_start(sample: Sample) -> int:
    """Index of the first token of the last answer; the number of tokens where there is no answer."""
    mask = sample.loss_mask
    starts = (mask & ~torch.cat((mask.new_zeros(1), mask[:-1]))).nonzero()[:, 0]
    return int(starts[-1]) if len(starts) else len(mask)
