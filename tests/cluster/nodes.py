"""A Ray cluster of several nodes on this machine, and a worker whose shards are small files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import atomic_writer, digest_file
from draftyard.cluster.workers import Job, ShardWorker, WorkerSettings

OBJECT_STORE_BYTES = 80 << 20
PATIENCE_SECONDS = 900.0  # starting an engine takes minutes where several share a core


# A busy machine is slow; read when ray is imported.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_gcs_server_request_timeout_seconds="120")


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's own look-up of a node that is just starting, which gives it 30 s, with more patience."""

    def get(*arguments: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    return get


class Nodes:
    """Starts and kills nodes. The head offers nothing: engines run on the others."""

    def __init__(self) -> None:
        from ray._private import services
        from ray.cluster_utils import Cluster

        services.get_node = patient(services.get_node)
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False})

    @property
    def address(self) -> str:
        """Where a driver finds it."""
        return str(self.cluster.address)

    def add(self, cpus: int = 1) -> Any:
        """Another node."""
        return self.cluster.add_node(num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES)

    def kill(self, node: Any) -> None:
        """End a node's processes without a word."""
        self.cluster.remove_node(node, allow_graceful=False)


@contextlib.contextmanager
def nodes() -> Iterator[Nodes]:
    """A cluster that is gone afterwards."""
    made = Nodes()
    try:
        yield made
    finally:
        import ray

        ray.shutdown()
        made.cluster.shutdown()


def wait_for(what: Callable[[], bool], name: str) -> None:
    """Wait until `what()`; fails the test, naming it, when that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < deadline, f"{name} did not happen within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.05)


class FileWorker(ShardWorker):
    """Shards that hold their own name. Every attempt leaves a note NUMBER-NAME beside them; while the file `hold` is there, none is finished."""

    def new_engine(self, log: Path) -> Any:
        return contextlib.nullcontext()

    def make_shard(self, job: Job, recovery: Any) -> dict[str, Any]:
        directory = job.path.parent
        (directory / "notes" / f"{self.number}-{job.path.name}").touch()
        while (directory / "hold").exists():
            time.sleep(0.02)
        if job.bound == "elsewhere":  # a file system of its own
            return {"sha256": "0" * 64}
        if job.bound == "mistake":
            from draftyard.errors import ParamError

            raise ParamError("a.key", 3, "must be even")
        with atomic_writer(job.path) as file:
            file.write(job.path.name)
        return {"sha256": digest_file(job.path)}


def settings(runtime: Any, logs: Path) -> WorkerSettings:
    """Of a FileWorker; the dtype is that of a verifier which says so itself."""
    return WorkerSettings(config={}, engine_args={"dtype": "float32"}, runtime=runtime, logs=logs)
