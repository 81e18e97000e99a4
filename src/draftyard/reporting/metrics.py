"""reports/metrics.json: the curated figures of a build, under keys that do not change. The gate reads nothing else.

One definition of acceptance everywhere: acceptance length = 1 + accepted draft tokens / draft rounds (vLLM's counting);
the rate at position i is the fraction of rounds that accepted at least i draft tokens, so the length is 1 + the sum of rates.
"spread" holds the 95% half-width of each measured figure (spread.py says of what), under the figure's own key.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from draftyard.reporting.inputs import BuildRecord
from draftyard.reporting.samples import PromptCounts, length_spread, prompt_counts, rate_spread
from draftyard.reporting.spread import median_half_width
from draftyard.reporting.text import clean, dig, mapping, number, numbers, rows


def acceptance_rates(measure: Any) -> list[float]:
    """Fraction of rounds that accepted at least i draft tokens, i = 1..k, of a measurement; empty when it has none."""
    rounds, accepted = number(dig(measure, "rounds")), numbers(dig(measure, "accepted"))
    if rounds:
        return [count / rounds for count in accepted]
    return numbers(dig(measure, "cumulative_rates"))


def acceptance_length(measure: Any) -> float | None:
    """The acceptance length of a measurement, or None when it has no rounds."""
    given = number(dig(measure, "acceptance_length"))
    rates = acceptance_rates(measure)
    return given if given is not None or not rates else 1 + sum(rates)


def best_epoch(train: dict[str, Any]) -> dict[str, Any]:
    """The epoch whose checkpoint was kept, or an empty mapping."""
    kept = train.get("best_epoch")
    return next((epoch for epoch in rows(train.get("epochs")) if epoch.get("epoch") == kept), {})


def categories(record: BuildRecord) -> list[str]:
    """Every category that was simulated or served, sorted."""
    return sorted({*mapping(record.simulation.get("categories")), *mapping(record.serving.get("categories"))})


def build_metrics(record: BuildRecord) -> dict[str, Any]:
    """The content of metrics.json. A figure that was not measured is null, never left out and never a stand-in."""
    simulation, train = record.simulation, record.stages.get("train", {})
    serving = record.serving if record.measured else {}
    served, simulated = acceptance_length(serving.get("overall")), acceptance_length(simulation)
    canary = dig(record.stages, "hidden_states", "canary")
    return {
        "acceptance_length": {
            "served": served,
            "simulated": simulated,
            "trained": number(best_epoch(train).get("holdout_acceptance_length")),
        },
        "acceptance_rate": {
            "served": _by_position(acceptance_rates(serving.get("overall"))),
            "simulated": _by_position(acceptance_rates(simulation)),
            "trained": _by_position(trained_rates(record)),
        },
        "acceptance_by_category": {
            clean(name): {
                "served": acceptance_length(dig(serving, "categories", name)),
                "simulated": acceptance_length(dig(simulation, "categories", name)),
            }
            for name in categories(record)
        },
        "num_speculative_tokens": {
            "served": number_or_none(serving.get("k")),
            "simulated": number_or_none(simulation.get("k")),
            "recommended": number_or_none(simulation.get("recommended_k")),
        },
        "simulation_gap": simulation_gap(record),
        "equal_outputs": _fraction(dig(serving, "equality", "equal"), dig(serving, "equality", "prompts")),
        "speedup": {key: number(dig(serving, "speed", f"speedup_{key}")) for key in ("median", "min", "max")},
        "tokens_per_s": {key: _median(dig(serving, "speed", f"{key}_tokens_per_s")) for key in ("plain", "draft")},
        "coverage": {key: number(dig(record.stages, "vocab", f"coverage_{key}")) for key in ("train", "holdout")},
        "canary": {key: number_or_none(dig(canary, key)) for key in ("agreement", "positions", "samples", "reference_max_difference")},
        "generate": {key: number_or_none(dig(record.stages, "generate", key)) for key in ("answers", "output_tokens", "skipped", "looping_fraction")},
        "train": {
            "best_epoch": number_or_none(train.get("best_epoch")),
            "train_loss": number(best_epoch(train).get("train_loss")),
        },
        "parameters": {key: number_or_none(parameters(record).get(key)) for key in ("saved", "total", "trainable")},
        "static": {
            "status": record.static.get("status") if isinstance(record.static.get("status"), str) else None,
            "failed": sum(check.get("status") == "fail" for check in rows(record.static.get("checks"))) if record.static else None,
        },
        "serving_status": serving_status(record),
        "spread": spreads(record),
    }


def samples(record: BuildRecord) -> dict[str, list[PromptCounts]]:
    """ "served", "simulated" -> counts per prompt, where they were recorded."""
    return {"served": prompt_counts(record.serving) if record.measured else [], "simulated": prompt_counts(record.simulation)}


def spreads(record: BuildRecord) -> dict[str, Any]:
    """95% half-widths of acceptance (over prompts) and of speed (over repeats)."""
    counts = samples(record)
    serving = record.serving if record.measured else {}
    positions = {"served": acceptance_rates(serving.get("overall")), "simulated": acceptance_rates(record.simulation)}
    return {
        "acceptance_length": {how: length_spread(found) for how, found in counts.items()},
        "acceptance_rate": {how: {f"position_{i}": rate_spread(found, i) for i in range(1, len(positions[how]) + 1) if found} for how, found in counts.items()},
        "acceptance_by_category": {
            clean(name): {how: length_spread([one for one in found if one.category == clean(name)]) for how, found in counts.items()}
            for name in categories(record)
        },
        "speedup": {"median": median_half_width(numbers(dig(serving, "speed", "speedups")))},
        "tokens_per_s": {key: median_half_width(numbers(dig(serving, "speed", f"{key}_tokens_per_s"))) for key in ("plain", "draft")},
    }


def simulation_gap(record: BuildRecord) -> float | None:
    """(simulated - served) / served, both at the same k; None when either is missing or k differs."""
    if not record.measured or record.serving.get("k") != record.simulation.get("k"):
        return None
    served, simulated = acceptance_length(record.serving.get("overall")), acceptance_length(record.simulation)
    return (simulated - served) / served if served and simulated is not None else None


def same_prompts(record: BuildRecord) -> bool:
    """Whether serving and simulation went over equally many prompts, so that their figures are of one set."""
    return record.measured and dig(record.serving, "overall", "prompts") == record.simulation.get("prompts") is not None


def parameters(record: BuildRecord) -> dict[str, Any]:
    """Parameter counts: as counted in the checkpoint, else as the training reported them."""
    return mapping(record.static.get("parameters")) or mapping(dig(record.stages, "train", "parameters"))


def trained_rates(record: BuildRecord) -> list[float]:
    """Per-position rates that the training measured on the holdout at its best epoch, when it recorded them."""
    return numbers(best_epoch(record.stages.get("train", {})).get("holdout_acceptance_rates"))


def serving_status(record: BuildRecord) -> str:
    """ "measured", "skipped" (for a stated reason) or "missing"."""
    status = record.serving.get("status")
    return status if status in ("measured", "skipped") else "missing"


def number_or_none(value: Any) -> int | float | None:
    """A count stays a whole number; anything that is no finite number is None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else number(value)


def _by_position(rates: list[float]) -> dict[str, float]:
    return {f"position_{i}": rate for i, rate in enumerate(rates, start=1)}


def _fraction(part: Any, whole: Any) -> float | None:
    counted, total = number(part), number(whole)
    return counted / total if counted is not None and total else None


def _median(values: Any) -> float | None:
    found = numbers(values)
    return median(found) if found else None
