"""`draftyard doctor`: what is installed, what this machine can run, and what to do about the rest."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from draftyard.hardware import available_memory, choose_compute_dtype, cpu_flags, cpu_quota, nvidia_gpus, openmp_library, vllm_cpu_extension

Status = Literal["ok", "warn", "fail"]

MIN_PYTHON = (3, 11)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
INTERESTING_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16")
GIB = 1 << 30
# Free space and memory for the default build (135M verifier): below `fail` it cannot finish, below `warn` it may not.
DISK_GIB = {"warn": 10, "fail": 3}
MEMORY_GIB = {"warn": 8, "fail": 4}
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report. `remedy` is empty only where there is nothing to do."""

    id: str
    status: Status
    detail: str
    remedy: str = ""


def run(json_output: bool) -> int:
    """Check this machine and installation, print the report, and return the exit status: 1 when a check fails."""
    checks = collect(Path.cwd())
    overall = worst(checks)
    if json_output:
        print(json.dumps({"status": overall, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print("\n".join(report_lines(checks)))
    return 1 if overall == "fail" else 0


def worst(checks: list[Check]) -> Status:
    """The gravest status among `checks`."""
    present = {check.status for check in checks}
    return "fail" if "fail" in present else "warn" if "warn" in present else "ok"


def report_lines(checks: list[Check]) -> Iterator[str]:
    """The report for a terminal: one line per check, its remedy below it, and a closing count."""
    width = max(len(check.id) for check in checks)
    for check in checks:
        yield f"{check.status:4}  {check.id:{width}}  {check.detail}"
        if check.remedy:
            yield f"{'':4}  {'':{width}}  -> {check.remedy}"
    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    yield f"\n{counts['ok']} ok, {counts['warn']} to know about, {counts['fail']} to mend"


def collect(root: Path) -> list[Check]:
    """Run every check for the repository `root`. A check that breaks is a failed check, not a traceback."""
    flavour = vllm_flavour()
    gpus = nvidia_gpus()
    steps: list[tuple[str, Callable[[], Check]]] = [
        ("python", lambda: check_python(sys.version_info[:3])),
        ("packages", lambda: check_packages(root / "requirements" / f"{'cuda' if flavour == 'vllm' else 'cpu'}.lock", metadata.version)),
        ("unwanted packages", lambda: check_unwanted(metadata.version)),
        ("torch", check_torch),
        ("vllm", lambda: check_vllm(flavour, gpus, cpu_flags(), platform.machine())),
        ("cpu", check_cpu),
        ("gpu", lambda: check_gpu(gpus, flavour)),
        ("dtype", lambda: check_dtype("cuda" if gpus and flavour == "vllm" else "cpu")),
        ("threads", check_threads),
        ("openmp", lambda: check_openmp(platform.machine(), flavour)),
        (
            "disk",
            lambda: check_space("disk", shutil.disk_usage(root).free, DISK_GIB, "free up space, or put the repository and DRAFTYARD_WORK_DIR on a larger disk"),
        ),
        ("memory", lambda: check_space("memory", available_memory(), MEMORY_GIB, "close other programs; lower engine.kv_cache_gib in runtime.yaml")),
        ("git", lambda: check_git(root)),
        ("dvc", lambda: check_dvc(root)),
        ("limits", lambda: check_limits("cuda" if gpus and flavour == "vllm" else "cpu")),
    ]
    checks = []
    for name, step in steps:
        try:
            checks.append(step())
        except Exception as error:
            checks.append(Check(id=name, status="fail", detail=f"could not be checked: {type(error).__name__}: {error}", remedy="make setup"))
    return checks


def check_python(version: tuple[int, ...]) -> Check:
    """The interpreter is new enough and runs in a virtual environment."""
    shown = ".".join(map(str, version))
    if version[:2] < MIN_PYTHON:
        return Check(
            id="python",
            status="fail",
            detail=f"{shown}, needs {'.'.join(map(str, MIN_PYTHON))} or later",
            remedy="make distclean; make setup PYTHON=python3.11",
        )
    if sys.prefix == sys.base_prefix:
        return Check(id="python", status="warn", detail=f"{shown}, not in a virtual environment", remedy="make setup, then use .venv/bin/draftyard")
    return Check(id="python", status="ok", detail=shown)


def read_lock(path: Path) -> dict[str, str]:
    """The pins of a lock file: distribution name -> version."""
    matches = (PIN.match(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {match[1]: match[2] for match in matches if match}


def installed_version(name: str, version_of: Callable[[str], str]) -> str | None:
    """The version of distribution `name`, or None when it is not installed."""
    try:
        return version_of(name)
    except metadata.PackageNotFoundError:
        return None


def check_packages(lock: Path, version_of: Callable[[str], str]) -> Check:
    """Every pin of the lock file is installed in that version (a local suffix such as +cpu does not count)."""
    if not lock.is_file():
        return Check(id="packages", status="warn", detail=f"no {lock.name} here to compare with", remedy="run draftyard doctor in the repository")
    missing, other = [], []
    pins = read_lock(lock)
    for name, wanted in pins.items():
        found = installed_version(name, version_of)
        if found is None:
            missing.append(f"{name} {wanted}")
        elif found != wanted and found.partition("+")[0] != wanted:
            other.append(f"{name} {found} (locked: {wanted})")
    remedy = "make setup; if that finds nothing to do: make distclean, then make setup"
    if missing:
        return Check(id="packages", status="fail", detail=f"{len(missing)} of {len(pins)} missing: {shorten(missing)}", remedy=remedy)
    if other:
        return Check(id="packages", status="warn", detail=f"{len(other)} of {len(pins)} differ from {lock.name}: {shorten(other)}", remedy=remedy)
    return Check(id="packages", status="ok", detail=f"all {len(pins)} as in {lock.name}")


def shorten(names: list[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def check_unwanted(version_of: Callable[[str], str]) -> Check:
    """None of the packages is there that break transformers when they were built for another torch."""
    broken, harmless = [], []
    for name in UNWANTED:
        if installed_version(name, version_of) is None:
            continue
        try:
            importlib.import_module(name)
            harmless.append(name)
        except Exception as error:
            broken.append(f"{name} ({str(error).splitlines()[0] if str(error) else type(error).__name__})")
    remedy = f"{Path(sys.executable).name} -m pip uninstall {' '.join(UNWANTED)}"
    if broken:
        return Check(id="unwanted packages", status="fail", detail=f"installed, and fail to import: {', '.join(broken)}", remedy=remedy)
    if harmless:
        return Check(id="unwanted packages", status="warn", detail=f"installed, though nothing here uses them: {', '.join(harmless)}", remedy=remedy)
    return Check(id="unwanted packages", status="ok", detail=f"none of {', '.join(UNWANTED)}")


def check_torch() -> Check:
    """torch can be imported."""
    try:
        import torch
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Check(
            id="torch", status="fail", detail=f"cannot be imported: {reason}", remedy="make distclean; make setup (see TORCH_INDEX in docs/dependencies.md)"
        )
    return Check(id="torch", status="ok", detail=f"{torch.__version__} ({'CUDA ' + torch.version.cuda if torch.version.cuda else 'CPU build'})")


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


def check_openmp(machine: str, flavour: str | None) -> Check:
    """Intel OpenMP, which vLLM on an x86 CPU wants preloaded."""
    library = openmp_library()
    if library is not None:
        return Check(id="openmp", status="ok", detail=f"{library.name} found; the engine preloads it")
    if flavour == "vllm" or machine not in ("x86_64", "AMD64"):
        return Check(id="openmp", status="ok", detail="Intel OpenMP is not used here")
    return Check(id="openmp", status="warn", detail="Intel OpenMP not found: vLLM runs, slower", remedy="make setup (package intel-openmp)")


def check_space(name: str, free: int, limits_gib: dict[str, int], remedy: str) -> Check:
    """`free` bytes are enough for the default build."""
    detail = f"{free / GIB:.1f} GiB free"
    if free < limits_gib["fail"] * GIB:
        return Check(id=name, status="fail", detail=f"{detail}; the default build needs {limits_gib['fail']} GiB", remedy=remedy)
    if free < limits_gib["warn"] * GIB:
        return Check(id=name, status="warn", detail=f"{detail}; {limits_gib['warn']} GiB are comfortable for the default build", remedy=remedy)
    return Check(id=name, status="ok", detail=detail)


def check_git(root: Path) -> Check:
    """git is there and `root` lies in a work tree, which DVC needs."""
    if shutil.which("git") is None:
        return Check(id="git", status="fail", detail="not found", remedy="install git")
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=20, check=True).stdout.removeprefix("git version ").strip()
    inside = subprocess.run(["git", "rev-parse", "--is-inside-work-tree"], cwd=root, capture_output=True, text=True, timeout=20, check=False)
    if inside.returncode != 0:
        reason = inside.stderr.strip().splitlines()[0] if inside.stderr.strip() else "not a git work tree"
        return Check(id="git", status="fail", detail=f"{version}, but {reason}", remedy="run it in a clone of the repository (DVC tracks it through git)")
    return Check(id="git", status="ok", detail=version)


def check_dvc(root: Path) -> Check:
    """DVC is installed beside this interpreter, and `root` is a DVC repository."""
    version = installed_version("dvc", metadata.version)
    command = Path(sys.executable).parent / "dvc"
    if version is None or not os.access(command, os.X_OK):
        return Check(id="dvc", status="fail", detail="not installed in this environment", remedy="make setup")
    if not (root / ".dvc").is_dir():
        return Check(id="dvc", status="fail", detail=f"{version}, but there is no .dvc folder here", remedy="run it in the root of the repository")
    return Check(id="dvc", status="ok", detail=version)


def check_limits(device: str) -> Check:
    """What cannot be done on this kind of machine, known before a build finds out."""
    if device == "cuda":
        return Check(id="limits", status="ok", detail="none known for this machine")
    return Check(
        id="limits",
        status="warn",
        detail="a verifier with MLA attention (DeepSeek, Kimi-K2) cannot be served with a draft on a CPU: the serving part of `verify` is skipped for it",
        remedy="generation to simulation work here; serve such a verifier on a GPU",
    )
