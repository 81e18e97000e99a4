"""The simulation part of `verify`: acceptance of the saved draft on held-out text, and what number of draft tokens would pay."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from draftyard.artifacts.hidden_states import HiddenStates
from draftyard.errors import ArtifactError
from draftyard.params.verify import VerifyParams
from draftyard.runtime import Runtime
from draftyard.training.batches import Row, usable_rows
from draftyard.verification.simulation import Tally, simulate

POSITION_EDGES = (0, *(2**power for power in range(4, 31)))


def relative_speed(acceptance_length: float, k: int, draft_cost: float, verify_cost: float) -> float:
    """Tokens per unit of time against plain decoding, in units of one plain verifier step (Leviathan et al. 2023, theorem 3.8).

    A round yields acceptance_length tokens and costs one verifier step, k draft steps of `draft_cost` each, and
    `verify_cost` for each of the k extra rows of the verifying step.
    """
    return acceptance_length / (1 + k * (draft_cost + verify_cost))


def cost_model(model: Any, verifier_parameters: int) -> dict[str, float]:
    """Costs of one draft token at batch 1, where weights are read once per step: the draft's weights used per step over the verifier's.

    The draft's embeddings are looked up, not read. The extra rows of a verifying step read no extra weights.
    """
    used = sum(p.numel() for name, p in model.named_parameters() if not name.startswith(("embed_tokens", "verifier_")))
    return {"draft_cost": used / verifier_parameters, "verify_cost": 0.0, "draft_weights_per_step": used, "verifier_weights_per_step": verifier_parameters}


def by_position(positions: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Acceptance length of rounds by where they happened: (tokens from the start of the answer or of the context, accepted)."""
    bins = []
    for low, high in pairwise(POSITION_EDGES):
        inside = [accepted for position, accepted in positions if low <= position < high]
        if inside:
            bins.append({"from": low, "to": high, "rounds": len(inside), "acceptance_length": 1 + sum(inside) / len(inside)})
    return bins


def run_simulation(
    model: Any, data: HiddenStates, names: set[tuple[str, int]], verifier_parameters: int, params: VerifyParams, runtime: Runtime
) -> dict[str, Any]:
    """Simulate over the holdout samples in `names` (id, sample number). See simulation.py for the method.

    Raises ArtifactError when one of them has no states, or none is named: a figure would stand for other prompts than it says.
    """
    torch.set_num_threads(runtime.num_threads())
    rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
    rows = [row for row in rows if (row.ref.id, row.ref.sample) in names]
    absent = sorted(names - {(row.ref.id, row.ref.sample) for row in rows})
    if absent or not rows:
        raise ArtifactError(f"{data.directory}: {len(absent)} of {len(names)} holdout samples have no states ({absent[:3]}); run dvc repro hidden_states")
    return summarise(simulate_rows(model, data, rows, params, runtime), params, cost_model(model, verifier_parameters), len(rows))


def simulate_rows(model: Any, data: HiddenStates, rows: list[Row], params: VerifyParams, runtime: Runtime) -> Any:
    """The raw Simulation at the params' k and simulate_up_to, on the CPU or wherever the model is."""
    device = next(model.parameters()).device
    return simulate(
        model, data, rows, k=params.num_speculative_tokens, max_k=params.simulate_up_to, micro_tokens=runtime.train.micro_batch_tokens, device=device
    )


def summarise(result: Any, params: VerifyParams, costs: dict[str, float], prompts: int) -> dict[str, Any]:
    """The simulation's JSON. recommended_k: the k of 1..simulate_up_to with the highest relative_speed under the cost model."""

    def counts(tally: Tally) -> dict[str, Any]:
        return {"acceptance_length": tally.acceptance_length, "rounds": tally.rounds, "accepted": tally.accepted}

    chosen: Tally = result.by_k[params.num_speculative_tokens]
    table = [
        {"k": k, **counts(tally), "relative_speed": relative_speed(tally.acceptance_length, k, costs["draft_cost"], costs["verify_cost"])}
        for k, tally in result.by_k.items()
    ]
    return {
        "prompts": prompts,
        "k": params.num_speculative_tokens,
        **counts(chosen),
        "by_k": table,
        "recommended_k": max(table, key=lambda row: row["relative_speed"])["k"],
        "cost_model": costs,
        "categories": {c: {"prompts": result.category_prompts[c], **counts(t)} for c, t in sorted(result.categories.items())},
        "by_position": by_position(result.positions),
        "by_context": by_position(result.contexts),
        "samples": [
            {"id": name, "sample": number, "category": category, "rounds": t.rounds, "accepted": t.accepted}
            for (category, name, number), t in sorted(result.samples.items())
        ],
    }
