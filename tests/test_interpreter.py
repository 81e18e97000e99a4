"""Rare garbage collections, and an end without taking the heap apart."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftyard.interpreter import MIDDLE, OLD, YOUNG, collect_rarely

SRC = Path(__file__).parents[1] / "src"

ENDING = """
import atexit, threading, time
from draftyard.interpreter import leave
class Node:
    def __del__(self):
        print("taken apart")
node = Node()
atexit.register(print, "exit handler")
def late():
    time.sleep(0.3)
    print("thread")
threading.Thread(target=late).start()
print("end", end=" of the work\\n")
leave(7)
"""

MADE_OF_VLLM = """
from draftyard.interpreter import collect_rarely, leave
collect_rarely()
from vllm import LLM
print("imported", flush=True)
leave()
"""


@pytest.fixture(autouse=True)
def _own_collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_collections_are_rare_but_not_off() -> None:
    collect_rarely()
    assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)
    assert gc.isenabled()


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SRC)})


def test_exit_handlers_run_and_output_arrives_but_nothing_is_taken_apart() -> None:
    ended = run(ENDING)
    assert ended.stdout.splitlines() == ["end of the work", "thread", "exit handler"]
    assert (ended.returncode, ended.stderr) == (7, "")


def test_a_reader_that_is_gone_does_not_change_the_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", ENDING],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": ""},
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (7, "")


@pytest.mark.slow
def test_a_process_that_imported_vllm_ends_without_a_word() -> None:
    ended = run(MADE_OF_VLLM)
    assert ended.returncode == 0
    assert ended.stdout.endswith("imported\n")
    assert "leaked" not in ended.stderr
