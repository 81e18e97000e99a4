"""Where training runs and in which precision."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftyard.errors import DraftyardError
from draftyard.hardware import choose_compute_dtype
from draftyard.runtime import Runtime
from draftyard.training.tracking import tracker_options

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of malloc.h."""


@dataclass(frozen=True)
class Compute:
    """accelerator: accelerate.Accelerator. autocast: None computes in float32. reason: why this dtype."""

    accelerator: Any
    autocast: torch.dtype | None
    dtype_name: str
    reason: str


def prepare(runtime: Runtime, logs: Path | None = None) -> Compute:
    """Set the threads, choose device and dtype, and the tracker of the curves, which writes below `logs` (None: no tracker).

    Raises DraftyardError when a GPU is asked for and there is none, or a tracker whose package is missing.
    """
    from accelerate import Accelerator

    if runtime.train.device == "cuda" and not torch.cuda.is_available():
        raise DraftyardError("runtime.yaml: train.device=cuda, but torch sees no GPU; install the CUDA lock (make setup ACCEL=cuda), or set it to auto")
    on_cpu = runtime.train.device == "cpu" or not torch.cuda.is_available()
    torch.set_num_threads(max(1, runtime.num_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))  # torchrun's processes share the cores
    if on_cpu:
        keep_freed_memory()
    dtype_name, reason = choose_compute_dtype("cpu" if on_cpu else "cuda")
    autocast = torch.bfloat16 if dtype_name == "bfloat16" else None
    return Compute(Accelerator(cpu=on_cpu, **tracker_options(runtime.train.logger, logs)), autocast, dtype_name, reason)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks for reuse (mallopt) instead of returning them to the kernel, whose page faults cost a CPU run up to half its time.

    Without effect on another C library.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
