"""Miniature verifiers of real families with random weights: what is particular to a family kept, everything else as small as vLLM's CPU backend takes it.

Its attention wants heads of 32 or more, its latent attention the sizes of DeepSeek-V3 themselves.
"""

from __future__ import annotations

import json
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


def deepseek_config() -> Any:
    """Latent attention and experts chosen with a correction bias (noaux_tc), the first layer dense."""
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        **COMMON, num_attention_heads=2, num_key_value_heads=2, kv_lora_rank=512, q_lora_rank=32, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1, moe_intermediate_size=64,
        routed_scaling_factor=2.827, norm_topk_prob=True, tie_word_embeddings=False, rope_parameters=ROPE,
    )  # fmt: skip
    config.topk_method, config.scoring_func = "noaux_tc", "sigmoid"  # vLLM asks for both; transformers knows no other
    return config


def deepseek_v3() -> Any:
    """DeepSeek-V3 and Kimi-K2."""
    from transformers import DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(deepseek_config())


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


def kimi_k25() -> Any:
    """Kimi-K2.5: a vision encoder beside DeepSeek-V3. The geometry stands in text_config, the tensors have another prefix."""
    from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25Config, Kimi_K25VisionConfig
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25ForConditionalGeneration

    vision = Kimi_K25VisionConfig(
        patch_size=2, pos_emb_height=4, pos_emb_width=4, pos_emb_time=2, num_attention_heads=2, num_hidden_layers=2, hidden_size=32, intermediate_size=48
    )
    config = Kimi_K25Config(
        text_config=deepseek_config(), vision_config=vision, projection_hidden_size=32, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        image_token_id=508, video_token_id=509, vision_start_token_id=510, vision_end_token_id=511,
    )  # fmt: skip
    return Kimi_K25ForConditionalGeneration(config)


LONG_ROPE = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}, "max_position_embeddings": 2048}
"""What a server may be told to do with a verifier's positions; far enough from ROPE that whoever passes it over answers something else."""
FAMILIES = {
    family.name: family
    for family in (
        Family("llama", llama, train={"init_from_verifier_layer": -1}),
        Family("qwen3", qwen3, engine_args={"hf_overrides": LONG_ROPE}),
        Family("deepseek_v3", deepseek_v3, draft={"num_attention_heads": 4, "num_key_value_heads": 2}, serves=False),
        Family("gpt_oss", gpt_oss, aux_layer_ids=(0, 3, 6)),
        Family("kimi_k25", kimi_k25, draft={"num_attention_heads": 4, "num_key_value_heads": 2}, serves=False),
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
    if family.name == "kimi_k25":
        as_published(directory)


def as_published(directory: Path) -> None:
    """Give a Kimi-K2.5 that transformers 5.19 saved what the published one has: the names of architecture and layers, and the processor's config."""
    from safetensors.torch import load_file, save_file

    config, weights = directory / "config.json", directory / "model.safetensors"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "architectures": ["KimiK25ForConditionalGeneration"], "media_placeholder_token_id": 508}), encoding="utf-8")
    published = {"language_model.model.blocks.": "language_model.model.layers.", "model.mm_projector.": "mm_projector."}
    renamed = {}
    for name, tensor in load_file(weights).items():
        for ours, theirs in published.items():
            name = name.replace(ours, theirs)
        renamed[name] = tensor.clone()
    save_file(renamed, weights, {"format": "pt"})
    media = {
        "patch_size": 2, "merge_kernel_size": 2, "temporal_merge_kernel_size": 2, "in_patch_limit": 64, "in_patch_limit_each_frame": 16,
        "in_patch_limit_video": None, "patch_limit_on_one_side": 8, "fixed_output_tokens": None, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    (directory / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": media}), encoding="utf-8")
