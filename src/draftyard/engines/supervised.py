"""An engine in a child process: started when it is needed, watched while it works, and started again after a failure.

An engine inside the stage's own process could hang it, or take it along when the kernel reclaims memory. The child gets
whole batches and starts each from the same state, so a batch that is asked again on a new engine gives the same bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftyard.engines.environment import engine_environment
from draftyard.engines.process import WorkerProcess
from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError
from draftyard.runtime import Runtime


def worker_command(module: str) -> tuple[str, ...]:
    """How to start `module` as a worker (see worker.py), but for the number of the pipe."""
    return (sys.executable, "-m", module)


class SupervisedEngine:
    """One engine at a time, in a child of this process. Use as a context manager: the child goes with it.

    config: what the worker's module says. After an EngineFailure the next batch starts another engine.
    """

    def __init__(self, command: tuple[str, ...], config: dict[str, Any], runtime: Runtime, log: Path) -> None:
        self._command = command
        self._config = {**config, "runtime": asdict(runtime.engine)}
        self._runtime = runtime
        self._log = log
        self._worker: WorkerProcess | None = None
        self._ready = False
        self.starts = 0
        """Engines started so far."""

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.unlink(missing_ok=True)
        self._launch()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self._worker is not None:
            (self._worker.close if kind is None and self._ready else self._worker.kill)()
            self._worker = None

    @property
    def start_seconds(self) -> float:
        """Longest start."""
        return self._runtime.engine.start_seconds

    @property
    def stall_seconds(self) -> float:
        """Longest silence."""
        return self._runtime.engine.stall_seconds

    @contextlib.contextmanager
    def batch(self) -> Iterator[WorkerProcess]:
        """A ready child for one batch; it is given up when the batch does not come to its end."""
        try:
            yield self._wait_ready()
        except BaseException:
            if self._worker is not None:
                self._worker.kill()
                self._worker = None
            raise

    def _launch(self) -> WorkerProcess:
        """Start the child without waiting for its engine."""
        self._worker = WorkerProcess(self._command, engine_environment(self._runtime, self._log), self._log)
        self._ready = False
        self.starts += 1
        self._worker.send(self._config, self.stall_seconds)
        return self._worker

    def _wait_ready(self) -> WorkerProcess:
        worker = self._worker or self._launch()
        if not self._ready:
            try:
                worker.receive(self.start_seconds)
            except EngineFailure:
                raise
            except DraftyardError as error:
                if self.starts == 1:  # it never worked: a mistake in the params or the machine
                    raise
                raise EngineFailure(f"the engine could not be started again: {error}") from None
            self._ready = True
        return worker
