"""What every test may rely on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

MOST_WORKERS = 4  # engines of several at once must fit into memory


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C interrupts: a run started in the background inherits that SIGINT is ignored, and would wait for ever in the tests that send it.

    Each worker of `pytest -n` has cores of its own, and so have the programs that its tests start: OpenMP's threads of
    two engines on the same cores wait for each other.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        cores, number = sorted(os.sched_getaffinity(0)), int(worker["workerid"].removeprefix("gw"))
        os.sched_setaffinity(0, cores[number % len(cores) :: worker["workercount"]])


def pytest_xdist_auto_num_workers() -> int:
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: the fast ones then fill what the last slow one would leave idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """No test hands its environment on: vLLM writes LD_PRELOAD and more of its own into this process's."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)
