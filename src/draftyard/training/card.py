"""README.md of a draft checkpoint: what it is, what it was made from, how to serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.files import atomic_writer
from draftyard.draft.geometry import DraftGeometry
from draftyard.params.train import TrainParams


def write_model_card(path: Path, card: VerifierCard, geometry: DraftGeometry, params: TrainParams, metrics: dict[str, Any]) -> None:
    """Write the model card. Only facts of the build, no machine names or dates."""
    name = card.name if card.source != "path" else Path(card.name).name  # a directory of this machine names nothing elsewhere
    revision = f" at {card.revision}" if card.revision else ""
    heads = f"{geometry.num_attention_heads} x {geometry.head_dim} = {geometry.num_attention_heads * geometry.head_dim}"
    served = f'{{"model": "models/draft", "method": "eagle3", "num_speculative_tokens": {params.ttt_steps}}}'
    text = f"""---
library_name: speculators
tags: [eagle3, speculative-decoding, draft]
---

# EAGLE-3 draft for {name}

Verifier: {name}{revision} ({card.source}), {card.num_parameters:,} parameters, card digest `{card.digest}`.

| | |
| --- | --- |
| parameters | {metrics["parameters"]["saved"]:,} saved, {metrics["parameters"]["trainable"]:,} trained |
| heads x head_dim | {heads} (hidden_size {geometry.hidden_size}) |
| aux layers | {list(geometry.aux_layer_ids)} (vLLM's convention: 0 is the embedding output) |
| draft vocabulary | {geometry.draft_vocab_size:,} of {geometry.vocab_size:,} tokens |
| trained on | {metrics["samples"]:,} of the verifier's own answers, {metrics["tokens_per_epoch"]:,} tokens, {metrics["best_epoch"]} epochs |
| held-out acceptance length | {metrics["holdout_acceptance_length"]:.3f} (simulated, {params.ttt_steps} draft tokens) |

Serve it beside its verifier with vLLM:

    vllm serve VERIFIER --speculative-config '{served}'

lineage.json holds the digests of what it was made from, the parameters and the package versions. Built with Draftyard.
"""
    with atomic_writer(path) as file:
        file.write(text)
