"""The machine: CPU, GPU, the dtype that follows, and the cores this process may use."""

from __future__ import annotations

import os
import platform

from draftyard.doctor.check import Check, shorten
from draftyard.hardware import choose_compute_dtype, cpu_flags, cpu_quota

INTERESTING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")


def check_cpu() -> Check:
    """Which vector units the CPU has."""
    flags = cpu_flags()
    if not flags:
        return Check(
            id="cpu", status="warn", detail=f"{platform.machine()}, features unknown", remedy="builds are tested on Linux; elsewhere nothing is promised"
        )
    return Check(
        id="cpu",
        status="ok",
        detail=f"{platform.machine()}: "
        + ", ".join(f"{name} {'yes' if name in flags else 'no'}" for name in INTERESTING_FLAGS if name != "bf16" or name in flags),
    )


def check_gpu(gpus: list[str], flavour: str | None) -> Check:
    """GPUs are reported; one that torch cannot reach is a failure of a CUDA installation."""
    if not gpus:
        return Check(id="gpu", status="ok", detail="none; everything runs on the CPU")
    if flavour == "vllm":
        import torch

        if not torch.cuda.is_available():
            return Check(id="gpu", status="fail", detail=f"{shorten(gpus)}, but torch cannot use it", remedy=f"install a driver for CUDA {torch.version.cuda}")
    return Check(id="gpu", status="ok", detail=shorten(gpus))


def check_dtype(device: str) -> Check:
    """The dtype that `dtype: auto` means here, and why."""
    dtype, reason = choose_compute_dtype(device)
    return Check(id="dtype", status="ok", detail=f"{dtype} on {device}: {reason}")


def check_threads() -> Check:
    """How many cores this process may use; the engine binds its threads to them."""
    allowed, present, quota = sorted(os.sched_getaffinity(0)), os.cpu_count() or 1, cpu_quota()
    detail = f"{len(allowed)} of {present} cores allowed ({','.join(map(str, allowed)) if len(allowed) <= 8 else f'{allowed[0]}..{allowed[-1]}'})"
    if quota is not None and quota < len(allowed):
        return Check(
            id="threads",
            status="warn",
            detail=f"{detail}, but the container has time for {quota:g}",
            remedy=f"set threads: {max(1, int(quota))} in runtime.yaml",
        )
    return Check(id="threads", status="ok", detail=detail)
