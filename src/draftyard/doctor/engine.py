"""vLLM: which build is installed, whether it fits the machine, and what it takes the machine for."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from draftyard.doctor.check import Check
from draftyard.doctor.packages import installed_version
from draftyard.hardware import openmp_library, vllm_cpu_extension

PLATFORM_SECONDS = 180.0
"""`import vllm` takes about 10 s on two cores."""
ASK_PLATFORM = "from vllm.platforms import current_platform as p; print(p.device_type, p.get_device_name())"


def vllm_flavour() -> str | None:
    """Which build of vLLM is installed: "vllm" (CUDA), "vllm-cpu", "both", or None."""
    found = [name for name in ("vllm", "vllm-cpu") if installed_version(name, metadata.version) is not None]
    return "both" if len(found) == 2 else found[0] if found else None


def check_vllm(flavour: str | None, gpus: list[str], flags: frozenset[str], machine: str) -> Check:
    """One build of vLLM is installed, it fits the machine, and its compiled extension for this CPU is there."""
    if flavour is None:
        return Check(id="vllm", status="fail", detail="not installed", remedy="make setup, or make setup ACCEL=cuda for an NVIDIA GPU")
    if flavour == "both":
        return Check(id="vllm", status="fail", detail="vllm and vllm-cpu are both installed and overwrite each other", remedy="make distclean; make setup")
    shown = f"{flavour} {metadata.version(flavour)}"
    if flavour == "vllm":
        if not gpus:
            return Check(
                id="vllm",
                status="fail",
                detail=f"{shown} is the CUDA build, and no NVIDIA GPU is seen",
                remedy="make setup ACCEL=cpu, or install the NVIDIA driver",
            )
        return Check(id="vllm", status="ok", detail=shown)
    extension = vllm_cpu_extension(flags, machine)
    if extension is None:
        return Check(id="vllm", status="fail", detail=f"{shown} needs a CPU with AVX2", remedy="use a newer CPU, or a GPU with make setup ACCEL=cuda")
    spec = importlib.util.find_spec("vllm")
    directory = Path(spec.origin).parent if spec is not None and spec.origin else None
    if directory is None or not any(directory.glob(f"{extension}.*so")):
        return Check(id="vllm", status="fail", detail=f"{shown} lacks the extension {extension} for this CPU", remedy="make distclean; make setup")
    if gpus:
        return Check(id="vllm", status="warn", detail=f"{shown} (extension {extension}), which leaves {gpus[0]} unused", remedy="make setup ACCEL=cuda")
    return Check(id="vllm", status="ok", detail=f"{shown}, extension {extension} fits this CPU")


def check_openmp(machine: str, flavour: str | None) -> Check:
    """Intel OpenMP, which vLLM on an x86 CPU wants preloaded."""
    library = openmp_library()
    if library is not None:
        return Check(id="openmp", status="ok", detail=f"{library.name} found; the engine preloads it")
    if flavour == "vllm" or machine not in ("x86_64", "AMD64"):
        return Check(id="openmp", status="ok", detail="Intel OpenMP is not used here")
    return Check(id="openmp", status="warn", detail="Intel OpenMP not found: vLLM runs, slower", remedy="make setup (package intel-openmp)")


class PlatformQuestion:
    """Asks vLLM in a child process, started at once, which platform it sees; `answer` waits for it."""

    def __init__(self, command: tuple[str, ...] = (sys.executable, "-c", ASK_PLATFORM)) -> None:
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(self, expected: str, seconds: float = PLATFORM_SECONDS) -> Check:
        """vLLM computes on `expected` ("cpu" or "cuda"). A wait beyond `seconds` is a warning."""
        try:
            out, err = self._child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            return Check(id="vllm platform", status="warn", detail=f"vLLM did not say within {seconds:.0f} s", remedy="close other programs and ask again")
        if self._child.returncode != 0:
            said = next((line for line in reversed(err.splitlines()) if line.strip()), f"exit {self._child.returncode}")
            return Check(id="vllm platform", status="fail", detail=f"vLLM cannot be imported: {said.strip()}", remedy="make distclean; make setup")
        said = out.strip().splitlines()[-1] if out.strip() else "nothing"  # after what vLLM logs
        kind, _, name = said.partition(" ")
        if kind != expected:
            return Check(
                id="vllm platform",
                status="fail",
                detail=f"vLLM computes on {said}, this installation is for {expected}",
                remedy="make distclean; make setup ACCEL=cpu, or make setup ACCEL=cuda",
            )
        return Check(id="vllm platform", status="ok", detail=f"{kind} ({platform.machine() if name in ('', kind) else name})")
