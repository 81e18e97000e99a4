"""The canary: captured states proved on a few samples before the first expensive minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.generations import Generation
from draftyard.artifacts.hidden_states import Sample
from draftyard.engines.extract import capture
from draftyard.errors import DraftyardError
from draftyard.params.hidden_states import HiddenStatesParams
from draftyard.params.verifier import NESTED_CONFIG
from draftyard.verifier_weights import load_embeddings

CANARY_POOL = 256
"""The canary takes the shortest of this many holdout samples."""


@dataclass(frozen=True)
class Agreement:
    """positions: answer tokens looked at. agreement: fraction where the verifier's argmax is the token. mean_rank: of the token, 0 is the argmax."""

    positions: int
    agreement: float
    mean_rank: float


@torch.inference_mode()
def next_token_agreement(samples: list[Sample], lm_head: Tensor, norm: Tensor, rms_norm_eps: float) -> Agreement:
    """Compare lm_head(norm(last state of row t)) with token t + 1 wherever the verifier wrote token t + 1.

    lm_head [V, H] and norm [H] are the verifier's, float32. A state that is off by one row, taken after the norm, or from
    another layer, fails here.
    """
    positions = right = ranks = 0
    for sample in samples:
        rows = sample.loss_mask.nonzero()[:, 0] - 1
        rows = rows[rows >= 0]
        states = F.rms_norm(sample.last[rows].float(), (sample.last.shape[-1],), norm, rms_norm_eps)
        logits = states @ lm_head.T  # (P, V)
        tokens = sample.token_ids[rows + 1]
        # Everything that is not below the token, but itself: a tie (states of zeros tie all logits) and NaN are no agreement.
        ahead = (~(logits < logits.gather(1, tokens[:, None]))).sum(-1) - 1
        positions += len(rows)
        right += int((ahead == 0).sum())
        ranks += int(ahead.sum())
    if not positions:
        raise DraftyardError("the canary's samples hold no token written by the verifier; raise hidden_states.canary_samples")
    return Agreement(positions, right / positions, ranks / positions)


@torch.inference_mode()
def reference_difference(
    samples: list[Sample], model_dir: Path, layer_ids: list[int], trust_remote_code: bool, hf_overrides: dict[str, Any] | None = None
) -> float:
    """Largest relative difference (Frobenius norm, per sample and layer) between captured states and a float32 transformers forward.

    layer_ids: in vLLM's convention; the last one, the number of layers, is compared through the final norm, because transformers
    gives the last state after it. The samples' states must be as captured, before any rounding. hf_overrides: as the engine had them.
    """
    model = load_reference(model_dir, trust_remote_code, hf_overrides or {})
    norm = model.get_decoder().norm
    worst = 0.0
    for sample in samples:
        states = model(sample.token_ids[None], output_hidden_states=True, logits_to_keep=1).hidden_states
        captured = [*sample.aux.float().chunk(len(layer_ids) - 1, dim=-1), norm(sample.last.float())]
        for layer_id, found in zip(layer_ids, captured, strict=True):
            expected = states[layer_id][0]
            worst = max(worst, float((found - expected).norm() / expected.norm()))
    return worst


def load_reference(model_dir: Path, trust_remote_code: bool, hf_overrides: dict[str, Any]) -> Any:
    """The verifier in float32 on the CPU as transformers computes it, under `hf_overrides`; a multimodal one with its encoders, which text passes by."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config: Any = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust_remote_code)
    config.update({key: value for key, value in hf_overrides.items() if key != NESTED_CONFIG})
    if NESTED_CONFIG in hf_overrides:
        getattr(config, NESTED_CONFIG).update(hf_overrides[NESTED_CONFIG])
    multimodal = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
    loader: Any = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    return loader.from_pretrained(model_dir, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code).eval()


def run_canary(
    llm: Any, holdout: Iterable[Generation], model_dir: Path, card: VerifierCard, aux_layer_ids: list[int], params: HiddenStatesParams
) -> dict[str, Any]:
    """Capture a few holdout samples (greedy answers) on the started engine and prove them. Returns the canary's metrics.

    Raises DraftyardError when the agreement or the reference difference breaks its bound.
    """
    chosen = sorted(islice(holdout, CANARY_POOL), key=lambda g: len(g.token_ids))[: params.canary_samples]
    samples = list(capture(llm, chosen, card.geometry.hidden_size, len(aux_layer_ids) + 1))
    weights = load_embeddings(model_dir)
    agreement = next_token_agreement(samples, weights["lm_head"], weights["norm"], card.geometry.rms_norm_eps)
    if agreement.agreement < params.canary_min_agreement:
        raise DraftyardError(
            f"canary: argmax(lm_head(norm(last state))) is the verifier's own next token at only {agreement.agreement:.1%} of {agreement.positions} "
            f"positions (mean rank {agreement.mean_rank:.1f}), hidden_states.canary_min_agreement={params.canary_min_agreement}: the captured last state "
            "is not what lm_head reads (another layer, another row, or already normalised), or the answers were not written by this verifier in this dtype"
        )
    difference = None
    if card.num_parameters <= params.canary_reference_max_parameters:
        layers = [*aux_layer_ids, card.geometry.num_hidden_layers]
        difference = reference_difference(samples, model_dir, layers, card.trust_remote_code, card.engine_args.get("hf_overrides"))
        if not difference <= params.canary_max_difference:
            raise DraftyardError(
                f"canary: captured states differ from a float32 reference forward by {difference:.2e} (relative), "
                f"hidden_states.canary_max_difference={params.canary_max_difference}: "
                "wrong layers, or an engine dtype too coarse for this bound (verifier.engine_args.dtype)"
            )
    return {
        "samples": len(samples),
        "positions": agreement.positions,
        "agreement": agreement.agreement,
        "mean_rank": agreement.mean_rank,
        "reference_max_difference": None if difference is None else float(f"{difference:.1e}"),
    }
