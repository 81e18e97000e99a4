"""What is installed: the interpreter, the packages of the lock, those that must not be there."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from draftyard.doctor.check import Check, shorten

MIN_PYTHON = (3, 11)
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)")


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
