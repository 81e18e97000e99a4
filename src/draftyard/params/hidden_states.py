"""params group `hidden_states`: which states of the verifier are captured, and how they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class HiddenStatesParams:
    """The captured hidden states. Any change rebuilds from `hidden_states` on."""

    aux_layer_ids: tuple[int, ...] | None
    """vLLM's convention: 0 is the embedding output, i the output of layer i (counted from 1). null: [2, n/2, n-3]."""
    dtype: Literal["bfloat16", "float16", "float32", "float8_e4m3"]
    """Element type on disk. float8_e4m3 comes with one scale per token and state, at half the bytes of bfloat16; docs/scaling.md says what it costs."""
    storage: Literal["outs", "store"]
    """outs: shards are DVC outputs, which push and pull carry. store: they lie in the feature store of runtime.yaml, and DVC sees index.json alone."""
    shard_mib: int
    """Size of a shard in MiB; a reader holds one shard at a time."""
    canary_samples: int
    """Samples whose states are proved before the run: next-token agreement, and a float32 reference forward."""
    canary_min_agreement: float
    """argmax(lm_head(norm(last state))) must be the verifier's greedy token at this fraction of positions or more."""
    canary_max_difference: float
    """Largest relative difference (Frobenius norm, per layer) from the reference forward."""
    canary_reference_max_parameters: int
    """The reference forward runs only for verifiers up to this many parameters."""
    max_skipped_fraction: float
    """The stage fails when the engine fails on a larger fraction of the training samples, each by itself, 0..1; the holdout must be whole."""

    def __post_init__(self) -> None:
        if self.aux_layer_ids is not None:
            ids = self.aux_layer_ids
            require(len(ids) == 3, "hidden_states.aux_layer_ids", list(ids), "vLLM's EAGLE-3 takes exactly 3 aux layers: give 3 ids")
            require(list(ids) == sorted(set(ids)), "hidden_states.aux_layer_ids", list(ids), "must be strictly increasing: vLLM sorts and de-duplicates them")
            require(ids[0] >= 0, "hidden_states.aux_layer_ids", list(ids), "ids start at 0 (the embedding output)")
        require(self.shard_mib >= 1, "hidden_states.shard_mib", self.shard_mib, "must be at least 1")
        require(self.canary_samples >= 1, "hidden_states.canary_samples", self.canary_samples, "must be at least 1")
        require(0 < self.canary_min_agreement <= 1, "hidden_states.canary_min_agreement", self.canary_min_agreement, "must lie in (0, 1]")
        require(self.canary_max_difference > 0, "hidden_states.canary_max_difference", self.canary_max_difference, "must be positive")
        require(
            self.canary_reference_max_parameters >= 0,
            "hidden_states.canary_reference_max_parameters",
            self.canary_reference_max_parameters,
            "must not be negative",
        )
        require(0 <= self.max_skipped_fraction <= 1, "hidden_states.max_skipped_fraction", self.max_skipped_fraction, "must lie in [0, 1]")


def resolve_aux_layer_ids(ids: tuple[int, ...] | None, num_layers: int) -> tuple[int, ...]:
    """The three aux layer ids in vLLM's convention for a verifier of `num_layers` layers.

    The default [2, n/2, n-3] is vLLM's and speculators' own (EAGLE-3's [1, n/2-1, n-4], counted from the
    embedding output). Raises ParamError for an id beyond the last layer.
    """
    if ids is None:
        # From 7 on the three differ: 6 layers give [2, 3, 3].
        require(
            num_layers >= 7, "hidden_states.aux_layer_ids", None, f"a verifier of {num_layers} layers is too shallow for the default [2, n/2, n-3]: give 3 ids"
        )
        return (2, num_layers // 2, num_layers - 3)
    require(ids[-1] <= num_layers, "hidden_states.aux_layer_ids", list(ids), f"the verifier has {num_layers} layers: ids lie in 0..{num_layers}")
    return ids
