"""The repository: git, DVC, and whether its remotes answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from draftyard.doctor.check import Check
from draftyard.doctor.packages import installed_version

REMOTE_SECONDS = 60.0


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


def check_remotes(root: Path, seconds: float = REMOTE_SECONDS) -> list[Check]:
    """One check for each DVC remote of the repository `root`: does it answer? Asked in child processes: a storage that hangs must not hang the doctor."""
    from dvc.config import Config

    if not (root / ".dvc").is_dir():
        return []
    remotes: dict[str, dict[str, str]] = Config(str(root / ".dvc"))["remote"]
    if not remotes:
        return [Check(id="dvc remote", status="ok", detail="none; outputs stay in the cache of this repository (dvc remote add -d NAME URL shares them)")]
    return [check_remote(root, name, str(values["url"]), seconds) for name, values in remotes.items()]


def check_remote(root: Path, name: str, url: str, seconds: float) -> Check:
    """The remote `name` at `url` answers within `seconds`. Not answering is a warning: a build works without it."""
    title = f"dvc remote {name}"
    remedy = f"check the network and the access rights, then: dvc remote modify {name} url ... (dvc push and dvc pull need it, a build does not)"
    try:
        asked = subprocess.run([sys.executable, "-m", "draftyard.doctor.remote", name], cwd=root, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Check(id=title, status="warn", detail=f"{url} does not answer within {seconds:.0f} s", remedy=remedy)
    said = (asked.stdout if asked.returncode == 0 else asked.stderr).strip().splitlines()
    detail = f"{url}: {said[-1] if said else f'exit {asked.returncode}'}"
    return Check(id=title, status="ok", detail=detail) if asked.returncode == 0 else Check(id=title, status="warn", detail=detail, remedy=remedy)
