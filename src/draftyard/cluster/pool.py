"""Handing shards to engines on a Ray cluster: who gets which, and what happens when one is lost.

Every engine is an actor that reserves its share of a node. Actors that the cluster has no room for wait in Ray's own queue, so a
node that joins later is used as soon as it is there. A shard whose actor is lost goes to the next free one. Nothing is
believed: the driver reads each shard from the shared file system and compares its digest before it counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from draftyard.artifacts.files import digest_file
from draftyard.cluster.workers import PACKAGE_DIR, Job, ShardWorker, code_digest
from draftyard.errors import DraftyardError
from draftyard.progress import Progress
from draftyard.runtime import Runtime

log = logging.getLogger(__name__)
POLL_SECONDS = 1.0
CLOSE_SECONDS = 30.0
REACH_SECONDS = 10.0
ROOM_NOTICE_SECONDS = 30.0
SHARED_SECONDS = 30.0
"""How long a file written on another node may take to be seen here (attribute caches of network file systems)."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard to make; job is None where it is there already. size: in the progress line's units."""

    job: Job | None
    size: int

    @property
    def path(self) -> Path:
        """Where it is to be."""
        assert self.job is not None
        return self.job.path


@dataclass
class _Worker:
    """number: counts all that were ever asked for. place: where it runs, for the log."""

    number: int
    actor: Any
    place: str = ""


class Pool:
    """Up to `runtime.ray.num_engines` workers on a cluster. Use as a context manager: the workers go with it, the cluster stays.

    factory: the worker's class; it is called with a number and `arguments`. dtype: the one that every node must arrive at.

    Raises DraftyardError when there is no cluster at runtime.ray.address, a node differs from this one, or workers are lost too often.
    """

    def __init__(self, factory: type[ShardWorker], arguments: tuple[Any, ...], runtime: Runtime, dtype: str) -> None:
        self._factory, self._arguments, self._runtime, self._dtype = factory, arguments, runtime, dtype
        self._started = 0
        self._starting: dict[Any, _Worker] = {}  # by the reference of ready()
        self._busy: dict[Any, tuple[_Worker, Shard]] = {}  # by the reference of make()
        self._idle: list[_Worker] = []
        self._again: deque[Shard] = deque()
        self._losses: Counter[str] = Counter()
        self._losses_in_a_row = 0
        self.used: set[str] = set()
        """Where shards were made."""

    def __enter__(self) -> Self:
        connect(self._runtime)
        for _ in range(self._runtime.ray.num_engines):
            self._start_worker()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        import ray

        with contextlib.suppress(Exception):  # a cluster that is gone has no workers either
            if kind is None:
                ray.wait([worker.actor.close.remote() for worker in self._idle], num_returns=len(self._idle), timeout=CLOSE_SECONDS)
            for worker in [*self._starting.values(), *(worker for worker, _ in self._busy.values()), *self._idle]:
                ray.kill(worker.actor)
        ray.shutdown()

    def make(self, shards: Iterator[Shard], progress: Progress, done: int = 0, on_made: Callable[[Path, dict[str, Any]], None] | None = None) -> int:
        """Have all `shards` made, taking them from the iterator as workers become free; on_made gets each with its entry. Returns how many were made."""
        import ray

        made, more, waited = 0, True, time.monotonic()
        while True:
            while self._idle and more:
                shard = self._again.popleft() if self._again else next(shards, None)
                if shard is None:
                    more = False
                elif shard.job is None:
                    done += shard.size
                else:
                    self._hand_out(shard)
            if not self._busy and not self._again and not more:
                return made
            finished, _ = ray.wait([*self._busy, *self._starting], num_returns=1, timeout=POLL_SECONDS)
            for reference in finished:
                if reference in self._starting:
                    self._greet(reference)
                elif (collected := self._collect(reference)) is not None:
                    shard, entry = collected
                    made += 1
                    done += shard.size
                    if on_made is not None:
                        on_made(shard.path, entry)
                else:
                    more = True
            if self._busy or self._idle:
                waited = time.monotonic()
            else:
                self._require_room(time.monotonic() - waited)
            progress.update(done, f"{len(self._busy)} engines at work")

    def first(self, method: str, *arguments: Any) -> dict[str, Any]:
        """What `method` of the first free worker returns; another is asked when that one is lost."""
        import ray

        waited = time.monotonic()
        while True:
            while not self._idle:
                for reference in ray.wait([*self._starting], num_returns=1, timeout=POLL_SECONDS)[0]:
                    self._greet(reference)
                self._require_room(time.monotonic() - waited)
            worker = self._idle.pop()
            try:
                outcome: dict[str, Any] = ray.get(getattr(worker.actor, method).remote(*arguments))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:
                self._lose(worker, None, error)
                continue
            if "error" in outcome:
                raise DraftyardError(f"{worker.place}: {outcome['error']}")
            self._idle.append(worker)
            return outcome

    def _start_worker(self) -> None:
        import ray

        options = {"num_cpus": self._runtime.ray.cpus_per_engine, "num_gpus": self._runtime.ray.gpus_per_engine, "max_restarts": 0}
        worker = _Worker(self._started, ray.remote(**options)(self._factory).remote(self._started, *self._arguments))
        self._started += 1
        self._starting[worker.actor.ready.remote()] = worker

    def _hand_out(self, shard: Shard) -> None:
        worker = self._idle.pop()
        log.info("%s: to %s", shard.path.name, worker.place)
        self._busy[worker.actor.make.remote(shard.job)] = worker, shard

    def _greet(self, reference: Any) -> None:
        """A worker has come up, or was lost on the way."""
        import ray

        worker = self._starting.pop(reference)
        try:
            found = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            self._lose(worker, None, error)
            return
        if "error" in found:
            raise DraftyardError(f"engine {worker.number}: {found['error']}")
        worker.place = f"engine {worker.number} on {found['host']} (pid {found['pid']})"
        for what, here in (("code", code_digest()), ("dtype", self._dtype)):
            if found[what] != here:
                remedy = (
                    "give every node the same draftyard (one checkout on the shared file system)"
                    if what == "code"
                    else "set verifier.engine_args.dtype, or start the build on a machine like the nodes"
                )
                raise DraftyardError(f"{worker.place} has {what} {found[what]}, the driver {here}; {remedy}")
        log.info("%s is up", worker.place)
        self._idle.append(worker)

    def _collect(self, reference: Any) -> tuple[Shard, dict[str, Any]] | None:
        """The finished shard, checked, and its entry; None when its worker was lost."""
        import ray

        worker, shard = self._busy.pop(reference)
        try:
            outcome = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            self._lose(worker, shard, error)
            return None
        if "error" in outcome:
            raise DraftyardError(f"{worker.place}: {outcome['error']}")
        require_shared(shard.path, outcome["entry"]["sha256"], worker.place)
        self._losses_in_a_row = 0
        self.used.add(worker.place)
        self._idle.append(worker)
        log.info("%s: made by %s", shard.path.name, worker.place)
        return shard, outcome["entry"]

    def _lose(self, worker: _Worker, shard: Shard | None, error: Exception) -> None:
        """Another worker is asked for; the shard is the next to be handed out."""
        import ray

        with contextlib.suppress(Exception):  # it may only be out of reach: then it must not go on
            ray.kill(worker.actor)
        place, reason = worker.place or f"engine {worker.number}", " ".join(str(error).split())[:300]
        most = self._runtime.engine.max_restarts
        self._losses_in_a_row += 1
        if shard is not None:
            self._losses[shard.path.name] += 1
            log.warning("%s was lost; %s goes to another engine (%s)", place, shard.path.name, reason)
            self._again.append(shard)
            if self._losses[shard.path.name] > most:
                raise DraftyardError(f"{shard.path.name} has cost {most + 1} engines, engine.max_restarts={most} in runtime.yaml allows {most}: {reason}")
        else:
            log.warning("%s was lost before it had a shard (%s)", place, reason)
        if self._losses_in_a_row > most + self._runtime.ray.num_engines:
            raise DraftyardError(f"{self._losses_in_a_row} engines were lost in a row, with no shard made between them; the last one: {reason}")
        self._start_worker()

    def _require_room(self, seconds: float) -> None:
        """Say that no engine has come up for `seconds`; raise when that is longer than engine.start_seconds."""
        import ray

        if seconds < ROOM_NOTICE_SECONDS:
            return
        wanted = f"ray.cpus_per_engine={self._runtime.ray.cpus_per_engine} and ray.gpus_per_engine={self._runtime.ray.gpus_per_engine}"
        text = f"no engine could be placed for {seconds:.0f} s: it needs {wanted} on one node, the cluster has {ray.available_resources()} free"
        if seconds > self._runtime.engine.start_seconds:
            raise DraftyardError(f"{text}; lower them in runtime.yaml, or add a node")
        if seconds % ROOM_NOTICE_SECONDS < 2 * POLL_SECONDS:
            log.warning("%s", text)


def connect(runtime: Runtime) -> None:
    """Join the cluster at runtime.ray.address as its driver. Workers get this process's code. Raises DraftyardError when there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise DraftyardError("runtime.yaml: executor=ray, but the package ray is not installed; run make setup, or set it to local") from None
    path = os.pathsep.join([str(PACKAGE_DIR.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    options: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}, "log_to_driver": False, "logging_level": logging.WARNING}
    address = runtime.ray.address
    try:
        if address != "auto":  # Ray would knock for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
        on_term = signal.getsignal(signal.SIGTERM)
        ray.init(address=address, **options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_term)  # Ray's own would end the stage without a word
    except (OSError, RuntimeError, ValueError) as error:
        raise DraftyardError(
            f"runtime.yaml: ray.address={address}: no Ray cluster answers there ({' '.join(str(error).split())[:200]}); "
            "start one (ray start --head, docs/cluster.md), or set executor to local"
        ) from None


def require_shared(path: Path, digest: str, place: str) -> None:
    """Wait until `path` is here with `digest`. Raises DraftyardError naming where it was written."""
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        found = digest_file(path) if path.exists() else None
        if found == digest:
            return
        if time.monotonic() > deadline:
            raise DraftyardError(
                f"{path} was written by {place} with digest {digest}, here it is {found or 'missing'}: the work area must lie on a file system "
                "that all nodes share under the same path (DRAFTYARD_WORK_DIR)"
            )
        time.sleep(0.1)


def skip_made(shards: Iterator[Shard]) -> tuple[int, Shard | None]:
    """Go on to the first shard that is missing. Returns (size of those before it, that shard or None)."""
    done = 0
    for shard in shards:
        if shard.job is not None:
            return done, shard
        done += shard.size
    return done, None
