"""Which modules can change what a stage makes: the code part of the resume area's key."""

from __future__ import annotations

from pathlib import Path

from draftyard.artifacts.files import digest_file
from draftyard.errors import DraftyardError
from draftyard.params.yaml_file import read_yaml

PACKAGE_DIR = Path(__file__).parent
PACKAGE = "src/draftyard/"
PLUMBING = frozenset(
    {
        "cluster/answers.py",  # who makes a shard, not what is in it
        "cluster/pool.py",
        "cluster/states.py",
        "cluster/workers.py",
        "console.py",
        "disk.py",  # refuses, makes nothing
        "dvc_state.py",
        "errors.py",
        "params/base.py",  # the values that it lets through are part of the key themselves
        "params/yaml_file.py",
        "progress.py",
        "runtime.py",  # as are the values of runtime.yaml that can turn a bit
        "stage.py",
        "stage_code.py",
        "training/launch.py",  # how many share the work
        "training/ranks.py",  # who writes, not what
        "training/tracking.py",  # shows curves
        "watchdog.py",
        "work.py",
    }
)
"""Modules that stages import and that cannot change a byte of a result: a change of one of them leaves unfinished work in place."""


def stage_code(root: Path, stage: str) -> dict[str, str]:
    """Name -> SHA-256 of the stage's script and of every module it imports, without PLUMBING.

    The list is that of dvc.yaml, which a test holds against the imports. Package modules are read where they are imported from.
    """
    path = root / "dvc.yaml"
    try:
        deps = read_yaml(path)["stages"][stage]["deps"]
    except (KeyError, TypeError):
        raise DraftyardError(f"{path}: has no stage {stage} with deps, which say what its unfinished work depends on") from None
    code = {}
    for dep in sorted(dep for dep in deps if dep.endswith(".py")):
        name = dep.removeprefix(PACKAGE)
        if name not in PLUMBING:
            code[name] = digest_file(root / dep if name == dep else PACKAGE_DIR / name)
    return code
