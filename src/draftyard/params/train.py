"""params group `train`: how the draft is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class TrainParams:
    """The training. Any change rebuilds from `train` on."""

    epochs: int
    """Passes over the training samples."""
    batch_tokens: int
    """Tokens per optimizer step, over all processes; samples are never cut."""
    max_sample_tokens: int
    """Longer samples are cut to this many tokens and counted."""
    optimizer: Literal["adamw", "muon"]
    """muon: Muon for the matrices, AdamW for the rest."""
    learning_rate: float
    """Peak learning rate."""
    min_learning_rate_ratio: float
    """Final learning rate as a fraction of the peak (cosine)."""
    warmup_steps: int
    """Steps of linear warm-up."""
    weight_decay: float
    """Decoupled weight decay on matrices."""
    initial_weight_decay: float
    """Decoupled decay of all trained weights towards what they started as (L2-SP, arXiv 1802.01483), a second copy of them. For few samples."""
    adam_beta1: float
    """AdamW's first moment decay."""
    adam_beta2: float
    """AdamW's second moment decay."""
    max_grad_norm: float
    """Global gradient norm clip."""
    ttt_steps: int
    """Training-time test steps: how many tokens ahead the draft is trained on its own states."""
    ttt_decay: float
    """Weight of step k's loss is ttt_decay ** k."""
    ttt_rows: Literal["all", "accepted"]
    """Rows that steps after the first train on: all, or those whose earlier guesses were the verifier's, from which alone serving goes on."""
    trainable_lm_head: bool
    """Whether lm_head starts as the verifier's rows and is trained (original EAGLE-3), or stays frozen."""
    init_from_verifier_layer: int | None
    """The first draft layer starts as this layer of the verifier (counted from 0; -1: the last), fc hands on the last aux state; null: random."""
    prompt_loss_weight: float
    """Loss weight of prompt tokens at the first TTT step: the target is the verifier's distribution whoever wrote the text. 0: answers only."""
    seed: int
    """Initial weights and order of samples."""
    max_skipped_fraction: float
    """Training fails when a larger fraction of samples carries no loss."""

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_tokens", "max_sample_tokens", "ttt_steps"):
            require(getattr(self, key) >= 1, f"train.{key}", getattr(self, key), "must be at least 1")
        require(self.max_sample_tokens >= 8, "train.max_sample_tokens", self.max_sample_tokens, "must be at least 8")
        require(0 < self.learning_rate < 1, "train.learning_rate", self.learning_rate, "must lie in (0, 1)")
        require(0 <= self.min_learning_rate_ratio <= 1, "train.min_learning_rate_ratio", self.min_learning_rate_ratio, "must lie in [0, 1]")
        require(self.warmup_steps >= 0, "train.warmup_steps", self.warmup_steps, "must not be negative")
        for key in ("weight_decay", "initial_weight_decay"):
            require(getattr(self, key) >= 0, f"train.{key}", getattr(self, key), "must not be negative")
        for key in ("adam_beta1", "adam_beta2"):
            require(0 <= getattr(self, key) < 1, f"train.{key}", getattr(self, key), "must lie in [0, 1)")
        require(self.max_grad_norm > 0, "train.max_grad_norm", self.max_grad_norm, "must be positive")
        require(0 < self.ttt_decay <= 1, "train.ttt_decay", self.ttt_decay, "must lie in (0, 1]")
        require(0 <= self.prompt_loss_weight <= 1, "train.prompt_loss_weight", self.prompt_loss_weight, "must lie in [0, 1]")
        require(0 <= self.max_skipped_fraction <= 1, "train.max_skipped_fraction", self.max_skipped_fraction, "must lie in [0, 1]")
