"""No orphans: a stage under a real `dvc repro` that is signalled or killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftyard import watchdog

ROOT = Path(__file__).parents[1]

STAGE = """
import os, sys, time
from pathlib import Path
from draftyard.stage import run_stage

def main(context):
    Path("pid").write_text(str(os.getpid()))
    try:
        time.sleep(60)
    finally:
        Path("unwound").touch()

run_stage("report", main)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A DVC repository with one stage that waits for a minute."""
    for name in ("runtime.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "stage.py").write_text(STAGE)
    (tmp_path / "dvc.yaml").write_text("stages:\n  report:\n    cmd: python stage.py\n    params: [report]\n    outs: [out]\n")
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n")
    return tmp_path


def start(repository: Path) -> tuple[subprocess.Popen[str], int]:
    """`dvc repro` in a process group of its own, and the process id of its stage, which is at work."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DVC_")}
    variables.update(PYTHONPATH=str(ROOT / "src"), PATH=f"{Path(sys.executable).parent}:{variables['PATH']}")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and children inherit that
    dvc = subprocess.Popen(["dvc", "repro"], cwd=repository, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not (repository / "pid").exists() or not (repository / "pid").read_text():
        assert time.monotonic() < deadline
        assert dvc.poll() is None, dvc.communicate()[0]
        time.sleep(0.05)
    return dvc, int((repository / "pid").read_text())


def gone(pid: int, seconds: float) -> bool:
    """Whether the process ends (or is a zombie that nobody waited for) within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group"), [(signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGINT, True)], ids=["SIGTERM to dvc", "SIGKILL to dvc", "Ctrl-C"]
)
def test_a_signal_to_dvc_ends_its_stage(number: signal.Signals, group: bool, repository: Path) -> None:
    dvc, stage = start(repository)
    try:
        (os.killpg if group else os.kill)(dvc.pid, number)
        output, _ = dvc.communicate(timeout=900)
        assert dvc.returncode != 0
        assert gone(stage, 120), output
        assert (repository / "unwound").exists()  # it ended as from Ctrl-C, with its clean-up
    finally:
        for pid in (stage, dvc.pid):
            if not gone(pid, 0.1):
                os.kill(pid, signal.SIGKILL)


def test_a_stage_started_by_hand_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(watchdog.DVC_VARIABLE, raising=False)
    monkeypatch.delenv(watchdog.WATCHED_VARIABLE, raising=False)
    watchdog.watch_dvc()
    assert watchdog.WATCHED_VARIABLE not in os.environ


def test_the_process_beyond_the_shells() -> None:
    """sh -> sh -> python: DVC's shell may stay in between, whatever the user's is."""
    code = f"import os, sys; sys.path.insert(0, {str(ROOT / 'src')!r}); from draftyard.watchdog import _parent_beyond_shells as p; print(p(os.getppid()))"
    script = 'sh -c \'"$0" -c "$1"; true\' "$0" "$1"; true'  # `true` keeps a shell from replacing itself
    said = subprocess.run(["sh", "-c", script, sys.executable, code], capture_output=True, text=True, check=True).stdout
    assert int(said) == os.getpid()
