"""params group `verify`: what the verification measures."""

from __future__ import annotations

from dataclasses import dataclass

from draftyard.params.base import require, require_below

REFERENCES_DIR = "data/references"


@dataclass(frozen=True, kw_only=True)
class VerifyParams:
    """The verification. Any change rebuilds from `verify` on."""

    num_speculative_tokens: int
    """Draft tokens per round when serving."""
    simulate_up_to: int
    """Acceptance is simulated for 1..this many draft tokens per round."""
    served_prompts: int | None
    """How many holdout prompts are served; null: all."""
    speed_prompts: int
    """How many of them are timed one at a time (batch 1)."""
    speed_repeats: int
    """Interleaved repeats (plain, draft, plain, draft, ...) of the timed prompts."""
    reference: str | None
    """Another draft that this one must be like, tensor by tensor: a table (JSON) or checkpoint below data/references; null: none."""

    def __post_init__(self) -> None:
        require(1 <= self.num_speculative_tokens <= 16, "verify.num_speculative_tokens", self.num_speculative_tokens, "must lie in 1..16")
        require(
            self.simulate_up_to >= self.num_speculative_tokens,
            "verify.simulate_up_to",
            self.simulate_up_to,
            f"must be at least verify.num_speculative_tokens={self.num_speculative_tokens}",
        )
        require(self.simulate_up_to <= 16, "verify.simulate_up_to", self.simulate_up_to, "must be at most 16")
        require(self.served_prompts is None or self.served_prompts >= 1, "verify.served_prompts", self.served_prompts, "must be at least 1, or null for all")
        require(self.speed_prompts >= 1, "verify.speed_prompts", self.speed_prompts, "must be at least 1")
        require(self.speed_repeats >= 1, "verify.speed_repeats", self.speed_repeats, "must be at least 1")
        require_below(REFERENCES_DIR, "verify.reference", self.reference)
