"""An independent reference for the simulation: one drafter, one text, one round after the other, everything recomputed at every step.

It shares the model's weights with the code under test and nothing else: the decoder layers, norms and rotary embedding are
speculators' own modules, called on the whole sequence with a plain causal mask, as if there were no cache and no batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PlainRound:
    """A round that began when `position` was the index of the last known token; how many proposals were accepted."""

    position: int
    accepted: int


def decode_states(model: Any, tokens: list[int], states: Tensor) -> Tensor:
    """Output of the decoder layers, [N, H]: row j takes token tokens[j] and states[j], stands at position j + 1 and sees the rows up to itself."""
    rows = len(tokens)
    positions = torch.arange(1, rows + 1)[None]
    hidden = torch.cat([model.embed_tokens(torch.tensor([tokens])), states[None]], dim=-1)  # (1, N, 2H)
    mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
    rotary = model.rotary_emb(hidden, positions)
    for layer in model.layers:
        hidden = layer(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
    return hidden[0]


@torch.no_grad()
def propose(model: Any, tokens: list[int], aux: Tensor, k: int) -> list[int]:
    """k draft tokens after `tokens` (all known), given the verifier's aux states [>= N - 1, 3H] of all of them but the last."""
    features = aux[: len(tokens) - 1]
    if model.input_norm is not None:
        features = model.input_norm(features)
    states = model.fc(features)  # (N - 1, H): row j belongs to token j
    fed = tokens[1:]  # beside the token after it
    proposals: list[int] = []
    for _ in range(k):
        state = decode_states(model, fed, states)[-1]
        normed = model.norm(state)
        best = int(model.lm_head(normed).argmax())
        token = best + int(model.d2t[best]) if model.d2t is not None else best
        proposals.append(token)
        fed = [*fed, token]
        states = torch.cat([states, (normed if model.config.norm_output else state)[None]])
    return proposals


def serve(model: Any, text: list[int], aux: Tensor, answer_start: int, k: int) -> list[PlainRound]:
    """Decode the greedy answer text[answer_start:] with k draft tokens per round.

    The prompt's forward yields the first answer token; every round yields the accepted proposals and one token of the verifier's own.
    """
    rounds = []
    position = answer_start
    while position < len(text) - 1:
        proposals = propose(model, text[: position + 1], aux, k)
        ahead = text[position + 1 :]
        accepted = 0
        while accepted < min(k, len(ahead)) and proposals[accepted] == ahead[accepted]:
            accepted += 1
        rounds.append(PlainRound(position, accepted))
        position += accepted + 1
    return rounds


def write_text(model: Any, prompt: list[int], aux: Tensor, lengths: Callable[[], int], k: int, vocab_size: int) -> list[int]:
    """A text of len(aux) tokens after which `model` drafts with the accepted lengths that `lengths()` asks for, 0..k each."""
    text = [*prompt, (prompt[-1] * 7 + 3) % vocab_size]
    while len(text) < len(aux):
        proposals = propose(model, text, aux, k + 1)
        wanted = lengths()
        text += [*proposals[:wanted], (proposals[wanted] + 1) % vocab_size]
    return text[: len(aux)]
