"""Watching a child process that holds an engine: every way it can be lost ends in a failure that says so, and the next batch gets a new one."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftyard.engines.answering import AnsweringEngine
from draftyard.engines.process import WorkerProcess, last_lines
from draftyard.engines.requests import EngineFailure, Finished, Request
from draftyard.errors import DraftyardError
from draftyard.runtime import load_runtime

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("fake_worker.py")
RUNTIME = load_runtime(ROOT)


def engine(scenario: str, directory: Path, stall: float = 30.0) -> AnsweringEngine:
    runtime = dataclasses.replace(RUNTIME, engine=dataclasses.replace(RUNTIME.engine, stall_seconds=stall, start_seconds=60.0))
    return AnsweringEngine({"model": "x"}, runtime, directory / "logs/engine.log", (sys.executable, str(WORKER), scenario, str(directory)))


def ask(made: AnsweringEngine, *names: str) -> list[Finished]:
    for name in names:
        made.add(Request(id=name, token_ids=[ord(c) for c in name], max_tokens=9))
    return list(made.finished())


ANSWERS = [Finished(id=name, token_ids=[ord(c) for c in reversed(name)], finish_reason="stop") for name in ("ab", "cd", "ef")]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_answers_come_step_by_step_and_a_later_turn_joins_the_batch(tmp_path: Path) -> None:
    steps: list[int] = []
    with engine("never", tmp_path) as made:
        made.add(Request(id="ab", token_ids=[1, 2], max_tokens=9))
        found = []
        for finished in made.finished(steps.append):
            found.append(finished)
            if len(found) < 3:
                made.add(Request(id=f"turn {len(found)}", token_ids=[*finished.token_ids, 7], max_tokens=9))
        assert [(f.id, f.token_ids) for f in found] == [("ab", [2, 1]), ("turn 1", [7, 1, 2]), ("turn 2", [7, 2, 1, 7])]
        assert steps == [2, 3, 4]
        assert ask(made, "ab", "cd", "ef") == ANSWERS
        assert list(made.finished()) == []
        assert made.starts == 1
        pid = made._worker.pid  # type: ignore[union-attr]
    assert gone(pid)
    assert (tmp_path / "config").read_text() == "['model', 'runtime']"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("exit", r"the engine ended with exit code 3; the last lines of .*/engine.log:\n.*about to exit"),
        ("kill", r"the engine was killed by SIGKILL \(the kernel kills so when memory runs out\).*about to kill"),
        ("raise", r"the engine failed: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB.*Traceback"),
    ],
)
def test_a_lost_engine_is_told_and_the_same_batch_is_answered_by_the_next(what: str, message: str, tmp_path: Path) -> None:
    with engine(f"once-{what}", tmp_path) as made:
        with pytest.raises(EngineFailure, match=f"(?s){message}"):
            ask(made, "ab", "cd", "ef")
        assert ask(made, "ab", "cd", "ef") == ANSWERS
        assert made.starts == 2


@pytest.mark.parametrize("what", ["hang", "stop", "deaf"])
def test_an_engine_without_a_sign_of_life_is_killed(what: str, tmp_path: Path) -> None:
    """Also one that takes nothing any more: the pipe to it is full, and a plain write would wait for ever."""
    with engine(f"once-{what}", tmp_path, stall=2.0) as made:
        many = [f"{number:04}" for number in range(3000)]
        first = made._worker.pid  # type: ignore[union-attr]
        with pytest.raises(EngineFailure, match="gave no sign of life for 2 s and was stopped"):
            ask(made, *many)
        assert gone(first)
        assert ask(made, "ab", "cd", "ef") == ANSWERS


def test_an_engine_that_cannot_start_is_a_mistake_the_first_time(tmp_path: Path) -> None:
    with engine("always-mistake-at-start", tmp_path) as made, pytest.raises(DraftyardError, match=r"^params.yaml: the verifier cannot be read$") as caught:
        ask(made, "ab")
    assert not isinstance(caught.value, EngineFailure)


def test_and_a_failure_later_because_it_has_worked(tmp_path: Path) -> None:
    with engine("once-kill", tmp_path) as made:
        with pytest.raises(EngineFailure):
            ask(made, "ab", "cd")
        made._command = (sys.executable, str(WORKER), "always-mistake-at-start", str(tmp_path))
        with pytest.raises(EngineFailure, match="could not be started again: params.yaml"):
            ask(made, "ab", "cd")


def test_an_engine_that_dies_at_its_start_is_a_failure(tmp_path: Path) -> None:
    with engine("once-die-at-start", tmp_path) as made:
        with pytest.raises(EngineFailure, match="exit code 3"):
            ask(made, "ab")
        assert ask(made, "ab", "cd", "ef") == ANSWERS


def test_a_mistake_in_the_middle_is_no_failure(tmp_path: Path) -> None:
    with engine("always-mistake", tmp_path) as made, pytest.raises(DraftyardError, match="cannot be read") as caught:
        ask(made, "ab", "cd")
    assert not isinstance(caught.value, EngineFailure)


def test_a_batch_that_is_left_takes_its_engine_along(tmp_path: Path) -> None:
    """An engine in the middle of other requests would answer them in the next batch."""
    with engine("never", tmp_path) as made:
        made.add(Request(id="ab", token_ids=[1], max_tokens=1))
        made.add(Request(id="cd", token_ids=[1], max_tokens=1))
        answers = made.finished()
        next(answers)
        made.add(Request(id="a later turn", token_ids=[1], max_tokens=1))
        pid = made._worker.pid  # type: ignore[union-attr]
        answers.close()
        assert gone(pid)
        assert ask(made, "ab", "cd", "ef") == ANSWERS
        assert made.starts == 2


def test_a_stage_that_is_killed_leaves_no_engine(tmp_path: Path) -> None:
    """SIGKILL gives the stage no time to end its child: the kernel does."""
    script = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from tests.engines.test_supervised import engine
with engine("never", Path({str(tmp_path)!r})) as made, made.batch():
    print(made._worker.pid, flush=True)
    time.sleep(600)
"""
    stage = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert stage.stdout is not None
    child = int(stage.stdout.readline())
    assert not gone(child)
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    deadline = time.monotonic() + 300
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(child)


def test_the_last_lines_of_a_log_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert last_lines(log) == "  (it is empty)"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert last_lines(log, 2) == "  line 99998\n  line 99999"


def test_a_child_that_closes_its_pipe_is_lost(tmp_path: Path) -> None:
    process = WorkerProcess((sys.executable, "-c", "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(600)"), dict(os.environ), tmp_path / "x.log")
    with pytest.raises(EngineFailure, match="closed its pipe and was stopped"):
        process.receive(30.0)
    assert gone(process.pid)
