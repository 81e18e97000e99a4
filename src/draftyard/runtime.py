"""runtime.yaml: what changes speed but never a result. No stage depends on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftyard.params.base import build, require
from draftyard.params.yaml_file import read_yaml

WORK_DIR_VARIABLE = "DRAFTYARD_WORK_DIR"


@dataclass(frozen=True, kw_only=True)
class EngineRuntime:
    """How vLLM uses this machine."""

    max_num_seqs: int
    """Sequences in flight."""
    max_num_batched_tokens: int
    """Tokens per engine step."""
    kv_cache_gib: int
    """CPU only: memory for the KV cache, GiB."""
    gpu_memory_utilization: float
    """GPU only: fraction of device memory."""
    tensor_parallel_size: int
    """GPUs per engine."""
    samples_per_shard: int
    """Prompts answered between two commits to the work area."""

    def __post_init__(self) -> None:
        for key in ("max_num_seqs", "max_num_batched_tokens", "kv_cache_gib", "tensor_parallel_size", "samples_per_shard"):
            require(getattr(self, key) >= 1, f"engine.{key}", getattr(self, key), "must be at least 1")
        require(0 < self.gpu_memory_utilization <= 1, "engine.gpu_memory_utilization", self.gpu_memory_utilization, "must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class TrainRuntime:
    """How training uses this machine."""

    device: Literal["auto", "cpu", "cuda"]
    """auto: a GPU when there is one."""
    micro_batch_tokens: int
    """Tokens per forward pass; gradients are accumulated up to train.batch_tokens."""
    checkpoint_every_steps: int
    """Optimizer steps between two resume points."""

    def __post_init__(self) -> None:
        require(self.micro_batch_tokens >= 8, "train.micro_batch_tokens", self.micro_batch_tokens, "must be at least 8")
        require(self.checkpoint_every_steps >= 1, "train.checkpoint_every_steps", self.checkpoint_every_steps, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The whole of runtime.yaml."""

    engine: EngineRuntime
    train: TrainRuntime
    threads: int | None
    """CPU threads; null: all cores this process may use."""

    def __post_init__(self) -> None:
        require(self.threads is None or self.threads >= 1, "threads", self.threads, "must be at least 1, or null for all")

    def num_threads(self) -> int:
        """CPU threads to use: `threads`, or every core of this process's affinity mask."""
        return self.threads or len(os.sched_getaffinity(0))


def load_runtime(root: Path) -> Runtime:
    """Read and validate runtime.yaml of the repository `root`. Raises ParamError."""
    return build(Runtime, "runtime", read_yaml(root / "runtime.yaml"))


def work_dir(root: Path) -> Path:
    """The resume area: $DRAFTYARD_WORK_DIR, or .work in the repository."""
    return Path(os.environ.get(WORK_DIR_VARIABLE) or root / ".work").absolute()
