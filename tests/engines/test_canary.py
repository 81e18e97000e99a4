"""The canary on states made by formula: right ones pass, each silent failure of a capture is caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftyard.artifacts.hidden_states import Sample
from draftyard.engines.canary import next_token_agreement
from draftyard.errors import DraftyardError

VOCAB, HIDDEN, EPS = 200, 32, 1e-5


def parts(seed: int = 0) -> tuple[Tensor, Tensor]:
    """lm_head and final norm of a verifier; norm weights as uneven as real ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, HIDDEN, generator=generator), torch.rand(HIDDEN, generator=generator) * 3 + 0.1


def greedy(states: Tensor, lm_head: Tensor, norm: Tensor) -> Tensor:
    """The verifier's next token after each row, written out: RMS norm, then the largest logit."""
    normed = states / (states.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * norm
    return (normed @ lm_head.T).argmax(-1)


def capture(length: int = 60, prompt: int = 10, seed: int = 1) -> Sample:
    """A sample whose tokens after the prompt are the verifier's greedy ones."""
    lm_head, norm = parts()
    generator = torch.Generator().manual_seed(seed)
    last = torch.randn(length, HIDDEN, generator=generator) * 20
    tokens = torch.randint(0, VOCAB, (length,), generator=generator)
    tokens[1:] = greedy(last, lm_head, norm)[:-1]
    tokens[:prompt] = torch.randint(0, VOCAB, (prompt,), generator=generator)
    mask = torch.arange(length) >= prompt
    return Sample(id="a", category="c", sample=0, aux=last.repeat(1, 3), last=last, token_ids=tokens, loss_mask=mask)


def agreement(change: Callable[[Sample], Tensor] | None = None, samples: int = 2) -> float:
    lm_head, norm = parts()
    made = [capture(seed=seed + 1) for seed in range(samples)]
    changed = [s if change is None else dataclasses.replace(s, last=change(s)) for s in made]
    result = next_token_agreement(changed, lm_head, norm, EPS)
    assert result.positions == 50 * samples
    return result.agreement


def test_states_as_captured_agree_everywhere() -> None:
    lm_head, norm = parts()
    result = next_token_agreement([capture(), capture(seed=2)], lm_head, norm, EPS)
    assert (result.positions, result.agreement, result.mean_rank) == (100, 1.0, 0.0)


def test_states_rounded_to_bfloat16_still_agree() -> None:
    assert agreement(lambda s: s.last.to(torch.bfloat16)) >= 0.95


def post_norm(s: Sample) -> Tensor:
    _, norm = parts()
    return s.last / s.last.pow(2).mean(-1, keepdim=True).sqrt() * norm


@pytest.mark.parametrize(
    ("change", "below"),
    [
        (lambda s: s.last.roll(1, 0), 0.1),
        (lambda s: s.last.roll(-1, 0), 0.1),
        (post_norm, 0.9),
        (lambda s: torch.randn(s.last.shape, generator=torch.Generator().manual_seed(9)), 0.1),
        (lambda s: s.last.roll(1, -1), 0.1),
        (lambda s: torch.zeros_like(s.last), 0.1),
        (lambda s: torch.full_like(s.last, float("nan")), 0.1),
        (lambda s: s.last * (torch.arange(len(s.last)) < 30)[:, None], 0.5),
    ],
    ids=["row before", "row after", "after the norm", "another layer", "channels shifted", "zeros", "nan", "half unwritten"],
)
def test_what_goes_wrong_silently_is_caught(change: Callable[[Sample], Tensor], below: float) -> None:
    assert agreement(change) < below


def test_answers_of_another_verifier_are_caught() -> None:
    lm_head, norm = parts(seed=5)
    assert next_token_agreement([capture()], lm_head, norm, EPS).agreement < 0.1


def test_only_tokens_of_the_verifier_count() -> None:
    lm_head, norm = parts()
    sample = capture()
    everything = dataclasses.replace(sample, loss_mask=torch.ones(60, dtype=torch.bool))
    result = next_token_agreement([everything], lm_head, norm, EPS)
    assert result.positions == 59  # nothing precedes the first token
    assert result.agreement == pytest.approx(50 / 59, abs=0.05)


def test_the_rank_counts_what_is_likelier() -> None:
    lm_head, norm = torch.eye(4), torch.ones(4)
    last = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 4)
    mask = torch.tensor([False, True, True, True])
    sample = Sample(id="a", category="c", sample=0, aux=last, last=last, token_ids=torch.tensor([0, 0, 2, 3]), loss_mask=mask)
    result = next_token_agreement([sample], lm_head, norm, EPS)
    assert (result.positions, result.agreement, result.mean_rank) == (3, pytest.approx(1 / 3), pytest.approx(5 / 3))


def test_nothing_to_look_at_is_an_error() -> None:
    lm_head, norm = parts()
    with pytest.raises(DraftyardError, match="hold no token written by the verifier"):
        next_token_agreement([dataclasses.replace(capture(), loss_mask=torch.zeros(60, dtype=torch.bool))], lm_head, norm, EPS)
