"""The size of a verifier by formula, against the models themselves: transformers' on the meta device. Public totals: tests/test_profiles.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftyard.draft.geometry import VerifierGeometry
from draftyard.draft.verifier_size import verifier_size
from draftyard.errors import ArtifactError
from tests.families.verifiers import FAMILIES, Family


def decoder_weights(model: Any) -> dict[str, torch.Tensor]:
    """All weights but those of encoders; the correction bias of a router is a buffer that is saved with them."""
    tensors = {name: tensor for name, tensor in model.named_parameters() if "vision" not in name and "projector" not in name}
    return tensors | {name: tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_formula_counts_what_transformers_builds(family: Family) -> None:
    with torch.device("meta"):
        model = family.model()
    config = model.config.to_dict()
    size = verifier_size(config, VerifierGeometry.from_config(config))
    weights = decoder_weights(model)
    assert size.parameters == sum(tensor.numel() for tensor in weights.values())
    routed = sum(tensor.numel() for name, tensor in weights.items() if ".experts." in name)
    assert size.experts == routed
    assert (size.experts > 0) == (family.name in ("deepseek_v3", "kimi_k25", "gpt_oss"))
    assert size.num_bytes == 2 * size.parameters


CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 1024, "num_experts": 8, "moe_intermediate_size": 32,
}  # fmt: skip


def size(**changes: Any) -> Any:
    config = {**CONFIG, **changes}
    return verifier_size(config, VerifierGeometry.from_config(config))


def test_layers_without_experts_have_a_plain_mlp() -> None:
    expert_layer, dense_layer = 8 * 3 * 64 * 32 + 8 * 64, 3 * 64 * 128
    assert size().experts == 4 * 8 * 3 * 64 * 32
    assert size().parameters - size(mlp_only_layers=[0, 1]).parameters == 2 * (expert_layer - dense_layer)


def test_quantised_weights_take_the_bytes_of_their_method() -> None:
    plain = size()
    embeddings = 2 * 512 * 64
    fp8 = size(quantization_config={"quant_method": "fp8"})
    assert fp8.num_bytes == embeddings * 2 + (plain.parameters - embeddings)
    mxfp4 = size(quantization_config={"quant_method": "mxfp4"})
    assert mxfp4.num_bytes == (plain.parameters - plain.experts) * 2 + plain.experts * 17 // 32
    int4 = size(quantization_config={"quant_method": "compressed-tensors"})
    assert int4.num_bytes == (plain.parameters - plain.experts) * 2 + plain.experts * 9 // 16
    assert size(quantization_config={"quant_method": "awq"}).num_bytes == plain.num_bytes  # unknown: bounds from above


def test_a_family_without_its_numbers_is_named() -> None:
    with pytest.raises(ArtifactError, match=r"config\.json: qk_rope_head_dim=None: must be a whole number above 0"):
        size(kv_lora_rank=512)
