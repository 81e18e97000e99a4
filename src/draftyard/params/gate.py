"""params group `gate`: the thresholds below which the build fails."""

from __future__ import annotations

from dataclasses import dataclass

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class GateParams:
    """The gate. Any change re-runs `gate` only."""

    min_acceptance_length: float
    """Served acceptance length over all holdout prompts (1.0 is no acceptance at all); the simulated one where serving may be skipped and was."""
    max_simulation_gap: float
    """Largest relative difference between simulated and served acceptance length, 0..1."""
    min_equal_outputs: float
    """Fraction of prompts whose output with the draft is token for token the plain one, 0..1."""
    min_canary_agreement: float
    """Next-token agreement of the captured states (see hidden_states.canary_min_agreement), 0..1."""
    min_holdout_coverage: float
    """Fraction of held-out answer tokens inside the draft vocabulary, 0..1."""
    require_serving: bool
    """Whether a build whose serving was skipped (an engine that cannot serve it here) is red."""

    def __post_init__(self) -> None:
        require(self.min_acceptance_length >= 1, "gate.min_acceptance_length", self.min_acceptance_length, "must be at least 1")
        for key in ("max_simulation_gap", "min_equal_outputs", "min_canary_agreement", "min_holdout_coverage"):
            require(0 <= getattr(self, key) <= 1, f"gate.{key}", getattr(self, key), "must lie in [0, 1]")
