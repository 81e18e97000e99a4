"""What vLLM's CPU build is told: what is mended there, and for which verifiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftyard.engines.cpu import cpu_options, hide_llvmlite, runs_on_cpu

pytestmark = pytest.mark.skipif(not runs_on_cpu(), reason="vLLM's CUDA build is installed")
TORCHS_ROTARY = {"custom_ops": ["all", "-rotary_embedding"]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 64}, None),
        ({"kv_lora_rank": None}, None),
        ({"kv_lora_rank": 512}, TORCHS_ROTARY),
        ({"text_config": {"hidden_size": 64, "kv_lora_rank": 512}}, TORCHS_ROTARY),
    ],
)
def test_latent_attention_gets_torchs_rotary_embedding(config: dict[str, Any], expected: dict[str, Any] | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = cpu_options(tmp_path)
    assert options.get("compilation_config") == expected
    assert options["enforce_eager"] is True


def test_llvmlites_library_has_no_dict_and_still_has_its_functions() -> None:
    ffi = pytest.importorskip("llvmlite.binding.ffi")
    hide_llvmlite()
    assert not hasattr(ffi.lib, "__dict__")
    assert callable(ffi.lib.LLVMPY_GetVersionInfo)


@pytest.mark.slow
@pytest.mark.engine
def test_the_mend_is_still_needed() -> None:
    """vLLM's own operator on (T, N, D) queries against its torch one. When they agree, cpu_options has nothing to mend any more."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    with set_current_vllm_config(VllmConfig()):
        rope = get_rope(64, max_position=32, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, is_neox_style=False, dtype=torch.float32)
        generator = torch.Generator().manual_seed(0)
        query, key, positions = torch.randn(7, 2, 64, generator=generator), torch.randn(7, 1, 64, generator=generator), torch.arange(7)
        expected = rope.forward_native(positions, query.clone(), key.clone())[0]
        flat = rope.forward_cpu(positions, query.flatten(1).clone(), key.flatten(1).clone())[0]
        found = rope.forward_cpu(positions, query.clone(), key.clone())[0]
    assert torch.allclose(flat, expected.flatten(1), atol=1e-5)  # what other verifiers hand it
    assert not torch.allclose(found, expected, atol=1e-2)
