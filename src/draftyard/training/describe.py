"""What was learned from, in a form that a human can check."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from draftyard.artifacts.hidden_states import HiddenStates

MAX_TOKENS = 400


def loss_mask_sample(data: HiddenStates, tokenizer: Any, prompt_loss_weight: float) -> list[dict[str, Any]]:
    """The shortest training sample as decoded runs of tokens: {"text", "tokens", "loss", "weight"}; loss is true on the verifier's own tokens."""
    ref = min(data.refs("train"), key=lambda r: (r.length, r.id))
    sample = data.load(ref)
    ids, mask = sample.token_ids.tolist()[:MAX_TOKENS], sample.loss_mask.tolist()[:MAX_TOKENS]
    runs = []
    for loss, group in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        tokens = [token for token, _ in group]
        text = tokenizer.decode(tokens, skip_special_tokens=False)
        runs.append({"text": text, "tokens": len(tokens), "loss": loss, "weight": 1.0 if loss else prompt_loss_weight})
    return runs
