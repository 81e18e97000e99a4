"""How many parameters a verifier has and how many bytes its weights take, from its config.json alone: for plans, before any download.

Formulas of the decoder families that vLLM 0.32 captures states from: Llama-like attention or latent attention (DeepSeek-V3,
Kimi), a dense MLP or experts. The encoders of a multimodal model are left out (Kimi-K2.5's are 0.1 % of it).
Legend: V vocabulary, H hidden size, h heads, kv key-value heads, d head_dim, I width of the MLP, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftyard.draft.config_values import read_int, text_config
from draftyard.draft.geometry import VerifierGeometry

EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
QK_NORM_FAMILIES = ("qwen3", "qwen3_moe")
BIASED_EXPERT_FAMILIES = ("gpt_oss",)
BITS = {"fp8": (8.0, 8.0), "mxfp4": (16.0, 4.25), "compressed-tensors": (16.0, 4.5)}
"""quant_method -> bits of a weight outside and inside the experts, scales included: fp8 per 128 x 128 block, mxfp4 a byte per 32, int4 two bytes per 32."""
PLAIN_BITS = (16.0, 16.0)


@dataclass(frozen=True)
class VerifierSize:
    """parameters: of the decoder, with embeddings and lm_head. experts: those of them in routed experts. num_bytes: of the weight files, estimated."""

    parameters: int
    experts: int
    num_bytes: int


def verifier_size(config: Mapping[str, Any], geometry: VerifierGeometry, source: str = "config.json") -> VerifierSize:
    """The size that `config` implies. Raises ArtifactError naming `source` and the key when a number of its family is missing."""
    text = text_config(config)
    hidden = geometry.hidden_size
    attention = _latent_attention(text, geometry, source) if text.get("kv_lora_rank") is not None else _attention(text, geometry)
    dense_layers = _dense_layers(text, geometry.num_hidden_layers, source)
    expert_layers = geometry.num_hidden_layers - dense_layers
    routed, beside = _experts(text, geometry, source) if expert_layers else (0, 0)
    layers = geometry.num_hidden_layers * (attention + 2 * hidden) + dense_layers * 3 * hidden * geometry.intermediate_size
    embeddings = geometry.vocab_size * hidden * (1 if geometry.tie_word_embeddings else 2)
    experts = expert_layers * routed
    parameters = layers + experts + expert_layers * beside + embeddings + hidden
    quantised = config.get("quantization_config") or text.get("quantization_config") or {}
    outside, inside = BITS.get(str(quantised.get("quant_method")), PLAIN_BITS)
    # Embeddings and lm_head stay in 16 bits under each of these methods.
    num_bytes = (embeddings * PLAIN_BITS[0] + (parameters - experts - embeddings) * outside + experts * inside) / 8
    return VerifierSize(parameters, experts, round(num_bytes))


def _attention(text: Mapping[str, Any], g: VerifierGeometry) -> int:
    """q and o (H, h*d), k and v (H, kv*d), their biases, per-head norms (Qwen3) and sinks (gpt-oss)."""
    query, key_value = g.num_attention_heads * g.head_dim, g.num_key_value_heads * g.head_dim
    total = g.hidden_size * 2 * (query + key_value)
    if text.get("attention_bias"):
        total += query + 2 * key_value + g.hidden_size
    if g.model_type in QK_NORM_FAMILIES:
        total += 2 * g.head_dim
    if g.model_type in BIASED_EXPERT_FAMILIES:
        total += g.num_attention_heads
    return total


def _latent_attention(text: Mapping[str, Any], g: VerifierGeometry, source: str) -> int:
    """DeepSeek-V3: query and key-value projections through low ranks with a norm each, rotary dims beside them."""
    rank, rope, nope, value = (read_int(text, key, source) for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    heads, hidden = g.num_attention_heads, g.hidden_size
    query_rank = text.get("q_lora_rank")
    query = hidden * heads * (nope + rope) if query_rank is None else query_rank * (hidden + 1 + heads * (nope + rope))
    return int(query) + hidden * (rank + rope) + rank + rank * heads * (nope + value) + heads * value * hidden


def _dense_layers(text: Mapping[str, Any], num_layers: int, source: str) -> int:
    """Layers with a plain MLP: all without experts; first_k_dense_replace (DeepSeek), mlp_only_layers (Qwen3) with them."""
    if not any(text.get(key) for key in EXPERT_KEYS):
        return num_layers
    only = text.get("mlp_only_layers")
    first = read_int(text, "first_k_dense_replace", source, default=0) if text.get("first_k_dense_replace") else 0
    return min(num_layers, first + (len(only) if isinstance(only, list) else 0))


def _experts(text: Mapping[str, Any], g: VerifierGeometry, source: str) -> tuple[int, int]:
    """Parameters of one layer's routed experts, and of what stands beside them: router with its bias, shared experts."""
    count = read_int(text, next(key for key in EXPERT_KEYS if text.get(key)), source)
    width = read_int(text, "moe_intermediate_size", source, default=g.intermediate_size)
    biased = g.model_type in BIASED_EXPERT_FAMILIES
    expert = 3 * g.hidden_size * width + (2 * width + g.hidden_size if biased else 0)
    router = count * g.hidden_size + (count if biased or text.get("topk_method") == "noaux_tc" else 0)
    shared = read_int(text, "n_shared_experts", source) if text.get("n_shared_experts") else 0
    return count * expert, router + shared * 3 * g.hidden_size * width
