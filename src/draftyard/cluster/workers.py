"""What runs on a cluster's nodes: an actor that holds one engine and makes one shard after the other.

Plain classes; pool.py makes actors of them. They write into the stage's work area, which all nodes share, atomically and under
the same names as a local build: a shard made twice has the same bytes. A mistake comes back as {"error": sentence}, because an
exception's class may not survive the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_file, digest_json
from draftyard.engines.recovery import Recovery
from draftyard.engines.supervised import SupervisedEngine
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.errors import DraftyardError
from draftyard.runtime import Runtime

PACKAGE_DIR = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What every worker is told.

    config: of the engine (see engines/worker.py). engine_args: the verifier's, as its card has them. runtime: `threads` is a number.
    logs: directory on the shared file system.
    """

    config: dict[str, Any]
    engine_args: dict[str, Any]
    runtime: Runtime
    logs: Path


def code_digest() -> str:
    """SHA-256 over this package's own source files."""
    return digest_json({path.relative_to(PACKAGE_DIR).as_posix(): digest_file(path) for path in sorted(PACKAGE_DIR.rglob("*.py"))})


def take_cores(number: int, threads: int) -> None:
    """Bind this process, and so its engine, to `threads` cores, others than its neighbours' where there are enough of them."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(number * threads + i) % len(cores)] for i in range(min(threads, len(cores)))})


@dataclass(frozen=True, kw_only=True)
class Job:
    """A shard to make. path: where. max_poisonous, bound: of samples that the engine fails on (see engines/recovery.py)."""

    path: Path
    max_poisonous: int
    bound: str


class ShardWorker:
    """One engine; see answers.AnswerWorker and states.CaptureWorker."""

    def __init__(self, number: int, settings: WorkerSettings) -> None:
        self.number, self.settings = number, settings
        self.scratch = Path(tempfile.mkdtemp(prefix="draftyard-"))  # on the node's own disk
        self.engine = self.new_engine(settings.logs / f"engine-{number}.log")

    def new_engine(self, log: Path) -> SupervisedEngine:
        """The engine, not started yet."""
        raise NotImplementedError

    def ready(self) -> dict[str, Any]:
        """Start the engine, without waiting for it. Returns where this is and what of it must be as in the driver, or {"error": sentence}."""
        # Ray sets it to what the actor reserves; the engine's threads are those of runtime.yaml, as in a local build.
        os.environ.pop("OMP_NUM_THREADS", None)
        take_cores(self.number, self.settings.runtime.num_threads())
        with told() as outcome:
            dtype = resolve_engine_args(self.settings.engine_args)[0]["dtype"]
            outcome.update(host=socket.gethostname(), pid=os.getpid(), code=code_digest(), dtype=dtype)
            self.engine.__enter__()
        return outcome

    def make(self, job: Job) -> dict[str, Any]:
        """Make one shard. Returns {"entry"}, or {"error": sentence}."""
        recovery = Recovery(self.settings.runtime.engine.max_restarts, job.max_poisonous, job.bound)
        with told() as outcome:
            outcome["entry"] = self.make_shard(job, recovery)
        return outcome

    def make_shard(self, job: Any, recovery: Recovery) -> dict[str, Any]:
        """Write the shard with its entry, and return that."""
        raise NotImplementedError

    def close(self) -> None:
        """End the engine and leave nothing behind."""
        self.engine.__exit__(None, None, None)
        shutil.rmtree(self.scratch, ignore_errors=True)


@contextlib.contextmanager
def told() -> Iterator[dict[str, Any]]:
    """A dict that gets {"error": sentence} when a DraftyardError ends the block."""
    outcome: dict[str, Any] = {}
    try:
        yield outcome
    except DraftyardError as error:
        outcome["error"] = str(error)


def worker_settings(config: dict[str, Any], engine_args: dict[str, Any], runtime: Runtime, logs: Path) -> WorkerSettings:
    """The settings of every worker; `threads` becomes the driver's number, so that an engine's results are those of a local build."""
    return WorkerSettings(config=config, engine_args=engine_args, runtime=dataclasses.replace(runtime, threads=runtime.num_threads()), logs=logs)
