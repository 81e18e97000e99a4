"""The gate: the figures of metrics.json against the thresholds of params group `gate`. A missing figure is red, never green."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftyard.params.gate import GateParams
from draftyard.reporting.text import dig, number


@dataclass(frozen=True, kw_only=True)
class GateLine:
    """One requirement: what was found, what is required, and what to do when it is red."""

    id: str
    status: Literal["red", "green", "skipped"]
    found: str
    threshold: str
    hint: str

    def __str__(self) -> str:
        text = f"{self.status:<8}{self.id:<20}{self.found}, required {self.threshold}"
        return f"{text}\n        {self.hint}" if self.status == "red" else text


def evaluate(params: GateParams, metrics: Mapping[str, Any]) -> list[GateLine]:
    """The gate's lines, in the order of the build's meaning: static checks, serving, acceptance, gap, equality, canary, coverage.

    When serving was skipped and `gate.require_serving` is false, the acceptance threshold applies to the simulation, and
    what only an engine can show is skipped. In every other case a figure that is missing or no number is red.
    """
    serving = metrics.get("serving_status")
    excused = serving == "skipped" and not params.require_serving
    how = "simulated" if excused else "served"
    return [
        _static(metrics),
        _serving(serving, params),
        _at_least(
            "acceptance_length",
            dig(metrics, "acceptance_length", how),
            params.min_acceptance_length,
            how,
            "gate.min_acceptance_length",
            "more, and more diverse, prompts help first; then docs/troubleshooting.md, The draft",
        ),
        _gap(metrics.get("simulation_gap"), params, excused),
        _skipped("equal_outputs")
        if excused
        else _at_least(
            "equal_outputs",
            metrics.get("equal_outputs"),
            params.min_equal_outputs,
            "",
            "gate.min_equal_outputs",
            "the report shows both texts of each divergence; beyond ties of rounding, the engine's verification is wrong",
        ),
        _at_least(
            "canary",
            dig(metrics, "canary", "agreement"),
            params.min_canary_agreement,
            "",
            "gate.min_canary_agreement",
            "the captured states are not the verifier's: check layers, last-layer convention, prefix caching and quantisation",
        ),
        _at_least(
            "holdout_coverage",
            dig(metrics, "coverage", "holdout"),
            params.min_holdout_coverage,
            "",
            "gate.min_holdout_coverage",
            "raise draft.vocab_size, or train on prompts closer to the held-out ones",
        ),
    ]


def red(lines: list[GateLine]) -> list[GateLine]:
    """The lines that fail the build."""
    return [line for line in lines if line.status == "red"]


def _static(metrics: Mapping[str, Any]) -> GateLine:
    status, failed = dig(metrics, "static", "status"), number(dig(metrics, "static", "failed"))
    good = status == "pass" and failed == 0
    found = "no static checks in metrics.json" if status is None else f"status {status}, {'unknown' if failed is None else f'{failed:.0f}'} failed"
    return GateLine(
        id="static_checks",
        status="green" if good else "red",
        found=found,
        threshold="status pass, 0 failed",
        hint="draftyard check models/draft names each failing check and its remedy",
    )


def _serving(status: Any, params: GateParams) -> GateLine:
    required = "measured (gate.require_serving)" if params.require_serving else "measured, or skipped for a stated reason"
    shown: Literal["red", "green", "skipped"] = "green" if status == "measured" else "skipped" if status == "skipped" and not params.require_serving else "red"
    return GateLine(
        id="serving",
        status=shown,
        found=str(status),
        threshold=required,
        hint="serve it where the engine can (reports/verify/serving.json says why not here), or set gate.require_serving: false",
    )


def _at_least(id: str, value: Any, threshold: float, how: str, key: str, hint: str) -> GateLine:
    found = number(value)
    shown = "no number" if found is None else f"{found:.4f}"
    status: Literal["red", "green"] = "green" if found is not None and found >= threshold else "red"
    return GateLine(
        id=id, status=status, found=f"{how} {shown}".strip(), threshold=f">= {threshold:g} ({key})", hint=_missing_hint(id) if found is None else hint
    )


def _gap(value: Any, params: GateParams, excused: bool) -> GateLine:
    if excused:
        return _skipped("simulation_gap")
    found = number(value)
    status: Literal["red", "green"] = "green" if found is not None and abs(found) <= params.max_simulation_gap else "red"
    hint = (
        "the engine does not run what was trained: compare the rates per position in the report; a lower first one points at layer ids or "
        "states, lower later ones at the draft's own state"
    )
    return GateLine(
        id="simulation_gap",
        status=status,
        found="no number" if found is None else f"{found:+.4f}",
        threshold=f"within {params.max_simulation_gap:g} (gate.max_simulation_gap)",
        hint=_missing_hint("simulation_gap") if found is None else hint,
    )


def _skipped(id: str) -> GateLine:
    return GateLine(id=id, status="skipped", found="serving was skipped", threshold="none without serving", hint="")


def _missing_hint(id: str) -> str:
    return f"reports/metrics.json holds no such figure, so {id} is not known to be good: see which stage left it out in reports/report.html"
