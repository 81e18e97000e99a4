"""Miniature verifiers of real families with random weights: what is particular to a family kept, everything else as small as vLLM's CPU backend takes it.

Its attention wants heads of 32 or more, its latent attention the sizes of DeepSeek-V3 themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class Family:
    """tolerance: of captured states from a float32 forward, relative. serves: whether vLLM 0.32 serves it with a draft on a CPU."""

    name: str
    model: Callable[[], Any]
    tolerance: float = 1e-3
    serves: bool = True
    aux_layer_ids: tuple[int, int, int] = (2, 3, 4)
    draft: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)


def llama() -> Any:
    """Grouped queries (4 heads of 32, 2 key-value heads), tied embeddings, llama3 rope scaling as Llama 3.1 has it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {**scaling, "original_max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rope_parameters=rope))


def qwen3() -> Any:
    """Normalised queries and keys; 4 heads of 32 are 128, not the hidden size 64; untied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, rope_parameters=ROPE))


def deepseek_v3() -> Any:
    """Latent attention and experts chosen with a correction bias (noaux_tc), the first layer dense: DeepSeek-V3 and Kimi-K2."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        **COMMON, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=512, q_lora_rank=32, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, moe_intermediate_size=64,
        routed_scaling_factor=2.827, norm_topk_prob=True, tie_word_embeddings=False, rope_parameters=ROPE,
    )  # fmt: skip
    config.topk_method, config.scoring_func = "noaux_tc", "sigmoid"  # vLLM asks for both; transformers knows no other
    return DeepseekV3ForCausalLM(config)


def gpt_oss() -> Any:
    """Every second layer sees 16 tokens only; attention sinks and biases; yarn as in the real one; 4 experts in 32 bits, 2 at work."""
    from transformers import GptOssConfig, GptOssForCausalLM

    yarn = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    rope = {**yarn, "original_max_position_embeddings": 32}
    config = GptOssConfig(
        **{**COMMON, "intermediate_size": 64}, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 3 + ["sliding_attention"], tie_word_embeddings=False, rope_parameters=rope,
    )  # fmt: skip
    return GptOssForCausalLM(config)


def llava() -> Any:
    """A vision encoder beside a Llama: the geometry stands in text_config, the tensors have another prefix."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    text = LlamaConfig(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, rope_parameters=ROPE)
    vision = CLIPVisionConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14, projection_dim=32)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=511, tie_word_embeddings=False))


LONG_ROPE = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}, "max_position_embeddings": 2048}
"""What a server may be told to do with a verifier's positions; far enough from ROPE that whoever passes it over answers something else."""
FAMILIES = {
    family.name: family
    for family in (
        Family("llama", llama, train={"init_from_verifier_layer": -1}),
        Family("qwen3", qwen3, engine_args={"hf_overrides": LONG_ROPE}),
        Family("deepseek_v3", deepseek_v3, draft={"num_attention_heads": 4, "num_key_value_heads": 2}, serves=False),
        Family("gpt_oss", gpt_oss, aux_layer_ids=(0, 3, 6)),
        Family("llava", llava, train={"init_from_verifier_layer": -1}),
    )
}


def save_family(family: Family, directory: Path) -> None:
    """Write the verifier with a byte-level BPE tokenizer to `directory`. Norm weights and correction biases are uneven, as trained ones are."""
    import torch

    from tests.pipeline.tiny_repo import save_tokenizer

    save_tokenizer(directory)
    torch.manual_seed(11)
    model = family.model().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("norm.weight", "e_score_correction_bias")):
                tensor.add_(torch.rand_like(tensor) - 0.3)
    model.save_pretrained(directory)
