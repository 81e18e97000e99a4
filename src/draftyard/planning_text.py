"""A plan as people read it: one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from draftyard.disk import human_bytes
from draftyard.planning import Plan
from draftyard.progress import format_seconds


def render_plan(plan: Plan, *, width: int = 120) -> str:
    """The plan on one screen, warnings last."""
    return "\n".join(_lines(plan, width))


def _lines(plan: Plan, width: int) -> Iterator[str]:
    g, v = plan.geometry, plan.verifier.geometry
    size = f", {plan.verifier.num_parameters / 1e6:,.0f}M parameters in {human_bytes(plan.verifier.num_bytes)}"
    yield f"verifier  {v.model_type}, hidden {v.hidden_size}, {v.num_hidden_layers} layers, {v.vocab_size} tokens{size}"
    yield (
        f"draft     hidden {g.hidden_size}, {g.num_hidden_layers} layer(s), heads {g.num_attention_heads}/{g.num_key_value_heads} x {g.head_dim}, "
        f"MLP {g.intermediate_size}, {g.draft_vocab_size} of {g.vocab_size} tokens, aux layers {list(g.aux_layer_ids)}, {g.dtype}"
    )
    counts = plan.parameters
    yield f"weights   {counts.total:,} in training, {counts.saved:,} saved, {counts.trainable:,} trainable; {len(plan.tensors)} tensors:"
    for name, spec in plan.tensors.items():
        yield f"            {name:44} {spec.dtype:5} {list(spec.shape)}"
    prompts = "an unknown number of" if plan.prompts is None else f"{plan.prompts:,}"
    yield f"tokens    {plan.tokens['total']:,} at most, from {prompts} prompts ({plan.tokens['train']:,} to train, {plan.tokens['holdout']:,} held out)"
    storage = plan.storage
    yield (
        f"storage   hidden states {human_bytes(storage['hidden_states_bytes'])} ({human_bytes(plan.bytes_per_token)} per token), "
        f"generations {human_bytes(storage['generations_bytes'])}, checkpoint {human_bytes(storage['checkpoint_bytes'])}"
    )
    for room in plan.rooms:
        yield f"          {room.path}: {room.purpose} {human_bytes(room.needed)}, free {human_bytes(room.free)}"
    yield f"memory    training {human_bytes(plan.memory['training_bytes'])} a process, available {human_bytes(plan.memory['available_bytes'])}"
    if plan.seconds is None:
        yield "time      no estimate: measured rates exist for dense verifiers on a CPU only"
    else:
        stages = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in plan.seconds.items() if stage != "total")
        yield f"time      about {format_seconds(plan.seconds['total'])} on this machine ({stages})"
    for warning in plan.warnings:
        yield from textwrap.wrap(warning, width, initial_indent="warning   ", subsequent_indent="          ")
