"""params group `draft`: the draft model's vocabulary and geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class DraftParams:
    """The draft. vocab_size rebuilds from `vocab` on, every other key from `train` on. Null inherits from the verifier."""

    vocab_size: int | None
    """Draft vocabulary, in tokens; null: the verifier's whole vocabulary."""
    hidden_size: int | None
    """Width; must be the verifier's (its embeddings and states are used as they are)."""
    num_hidden_layers: int
    """Decoder layers; the first takes the token embedding and the hidden state side by side."""
    num_attention_heads: int | None
    """Query heads."""
    num_key_value_heads: int | None
    """Key and value heads."""
    head_dim: int | None
    """Width of a head. Explicit on purpose: heads x head_dim need not be hidden_size, and a silent default is how drafts go wrong."""
    intermediate_size: int | None
    """Width of the MLP."""
    rope_theta: float | None
    """RoPE base."""
    rms_norm_eps: float | None
    """Epsilon of the RMS norms."""
    max_position_embeddings: int | None
    """Longest context the draft is built for, in tokens."""
    norm_before_residual: bool
    """Whether the residual of the first layer is the normalised hidden state."""
    norm_before_fc: bool
    """Whether one RMS norm precedes the fc projection (adds input_norm.weight)."""
    norm_output: bool
    """Whether the state fed to the next step is the normalised one (EAGLE 3.1)."""
    dtype: Literal["bfloat16", "float16", "float32"]
    """Element type of the saved checkpoint."""

    def __post_init__(self) -> None:
        for key in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "max_position_embeddings",
        ):
            value = getattr(self, key)
            require(value is None or value > 0, f"draft.{key}", value, "must be positive")
        for key in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, key)
            require(value is None or value > 0, f"draft.{key}", value, "must be positive")
        require(self.head_dim is None or self.head_dim % 2 == 0, "draft.head_dim", self.head_dim, "must be even: RoPE turns pairs")
