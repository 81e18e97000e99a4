"""What every stage script shares: declared params only, errors without a traceback, SIGTERM like Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from draftyard import stage
from draftyard.errors import ParamError
from draftyard.params.report import ReportParams
from draftyard.runtime import load_runtime
from draftyard.stage import DEBUG_VARIABLE, StageContext, run_stage

ROOT = Path(__file__).parents[1]

SCRIPT = """
import errno, logging, os, sys, time
from draftyard import stage
from draftyard.errors import ArtifactError

stage.load_stage_params = lambda name, root: {"report": {"title": "t", "uncovered_tokens": 1, "baseline": None}}

def main(context):
    if sys.argv[1] == "fail":
        raise ArtifactError("shard-0: is damaged; re-run the stage")
    if sys.argv[1] == "chatter":
        print("Loading weights", file=sys.stderr, flush=True)
        logging.getLogger("draftyard.x").info("two shards")
        os.write(2, b"CUDA error\\n")
        raise ArtifactError("no engine; start one")
    if sys.argv[1] == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "shard-1")
    if sys.argv[1] == "bug":
        raise ZeroDivisionError
    if sys.argv[1] == "wait":
        try:
            print("waiting", flush=True)
            time.sleep(30)
        finally:
            print("cleaned", flush=True)
    print(context.name, context.root, context.work.name, flush=True)

stage.run_stage("report", main)
"""


def start(directory: Path, what: str, **environment: str) -> subprocess.Popen[str]:
    shutil.copy(ROOT / "runtime.yaml", directory)
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, what], cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_stage_sees_its_name_its_root_and_its_work_area(tmp_path: Path) -> None:
    child = start(tmp_path, "run", DRAFTYARD_WORK_DIR=str(tmp_path / "elsewhere"))
    out, _ = child.communicate()
    assert (child.returncode, out) == (0, f"report {tmp_path} elsewhere\n")


def test_a_users_error_is_a_sentence_and_exit_1(tmp_path: Path) -> None:
    child = start(tmp_path, "fail")
    _, err = child.communicate()
    assert child.returncode == 1
    assert err == "\nreport failed: shard-0: is damaged; re-run the stage\n"


def test_a_users_error_has_its_traceback_when_asked_for(tmp_path: Path) -> None:
    child = start(tmp_path, "fail", **{DEBUG_VARIABLE: "1"})
    _, err = child.communicate()
    assert child.returncode == 1
    assert "Traceback" in err


def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    child = start(tmp_path, "bug")
    _, err = child.communicate()
    assert child.returncode == 1
    assert "ZeroDivisionError" in err


def test_a_library_is_quiet_until_the_stage_fails(tmp_path: Path) -> None:
    """Its chatter is in the stage's log; a failure shows the end of it. Our own lines are in both."""
    child = start(tmp_path, "chatter", DRAFTYARD_WORK_DIR=str(tmp_path / "elsewhere"))
    _, err = child.communicate()
    log = tmp_path / "elsewhere/logs/report.log"
    assert child.returncode == 1
    assert err == f"report: two shards\n\nreport failed: no engine; start one\nlast lines of {log}:\n  Loading weights\n  CUDA error\n"
    kept = [line.split(" draftyard ")[-1] for line in log.read_text().splitlines()]
    assert kept == ["Loading weights", "report: two shards", "CUDA error"]


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    child = start(tmp_path, "full")
    _, err = child.communicate()
    assert child.returncode == 1
    assert err == "\nreport failed: shard-1: No space left on device; mend that and run the same command again, it goes on where it stood\n"


def test_a_copy_of_the_repository_runs_its_own_code(tmp_path: Path) -> None:
    """As DVC's queue makes them: the interpreter's `draftyard` is the original's."""
    copy = tmp_path / ".dvc/tmp/exps/tmp1"
    shutil.copytree(ROOT / "src/draftyard", copy / "src/draftyard", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "src/draftyard/__init__.py").open("a") as file:
        file.write("\nprint('code of the copy', flush=True)\n")
    child = start(copy, "run")
    out, err = child.communicate()
    assert (child.returncode, out) == (0, f"code of the copy\nreport {copy} .work\n"), err
    assert (tmp_path / ".work/logs/report.log").exists()  # logs outlive the copy


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unwinds_and_ends_in_a_sentence(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it, and children inherit that
    child = start(tmp_path, "wait")
    signal.signal(signal.SIGINT, before)
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=300)
    assert child.returncode == 130
    assert out == "cleaned\n"
    assert "report interrupted; finished shards are kept" in err
    assert "Traceback" not in err


def test_an_undeclared_group_is_refused(tmp_path: Path) -> None:
    context = StageContext("report", tmp_path, {"report": {"title": "t", "uncovered_tokens": 1, "baseline": None}}, load_runtime(ROOT), tmp_path / ".work")
    assert context.group(ReportParams, "report").title == "t"
    with pytest.raises(ParamError, match=r"^gate: stage report does not declare this group in dvc\.yaml"):
        context.group(ReportParams, "gate")


def test_a_declared_value_is_validated(tmp_path: Path) -> None:
    context = StageContext("report", tmp_path, {"report": {"title": 3, "uncovered_tokens": 1, "baseline": None}}, load_runtime(ROOT), tmp_path / ".work")
    with pytest.raises(ParamError, match=r"^report\.title=3: must be a text"):
        context.group(ReportParams, "report")


def test_params_come_through_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only declared keys, and a number that DVC wrote is a number."""
    from dvc.repo import Repo

    shutil.copy(ROOT / "runtime.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text("report: {title: no, uncovered_tokens: 1, baseline: null}\ntrain:\n  lr: 2e-05\n  seed: 1\ngate: {x: 1}\n")
    (tmp_path / "dvc.yaml").write_text("stages:\n  report:\n    cmd: python r.py\n    params: [report, train.lr]\n")
    Repo.init(str(tmp_path), no_scm=True).close()
    monkeypatch.chdir(tmp_path)
    assert stage.load_stage_params("report", tmp_path) == {"report": {"title": "no", "uncovered_tokens": 1, "baseline": None}, "train": {"lr": 2e-05}}
    seen = []
    handler = signal.getsignal(signal.SIGTERM)
    try:
        run_stage("report", lambda context: seen.append((context.group(ReportParams, "report"), context.work)))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert seen == [(ReportParams(title="no", uncovered_tokens=1, baseline=None), tmp_path / ".work")]
