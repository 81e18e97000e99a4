"""Shards handed out on a real Ray cluster of several nodes on this machine: a node that joins is used, one that dies costs its shard alone."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftyard.cluster import pool as pool_module
from draftyard.cluster.pool import Pool, Shard, skip_made
from draftyard.cluster.workers import Job
from draftyard.errors import DraftyardError
from draftyard.progress import Progress
from draftyard.runtime import Runtime, load_runtime
from tests.cluster.nodes import PATIENCE_SECONDS, FileWorker, Nodes, nodes, settings, wait_for
from tests.pipeline.tiny_repo import ROOT

pytest.importorskip("ray", reason="the package ray is not installed: make setup")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as made:
        made.add()
        yield made


def runtime(cluster: Nodes, engines: int = 2) -> Runtime:
    shipped = load_runtime(ROOT)
    ray = replace(shipped.ray, address=cluster.address, num_engines=engines, cpus_per_engine=1)
    return replace(shipped, executor="ray", threads=1, ray=ray)


def shards(directory: Path, count: int, bound: str = "") -> list[Shard]:
    (directory / "notes").mkdir(parents=True, exist_ok=True)
    return [Shard(job=Job(path=directory / f"part-{i}.txt", max_poisonous=0, bound=bound), size=10) for i in range(count)]


def make(cluster: Nodes, directory: Path, wanted: list[Shard], **options: Any) -> int:
    used = runtime(cluster, options.pop("engines", 2))
    with Pool(FileWorker, (settings(used, directory / "logs"),), used, options.pop("dtype", "float32")) as pool:
        return pool.make(iter(wanted), Progress("test", 10 * len(wanted), "lines"), **options)


def attempts(directory: Path) -> Counter[str]:
    """How often each shard was begun."""
    return Counter(path.name.split("-", 1)[1] for path in (directory / "notes").iterdir())


def test_a_node_that_joins_is_used_and_one_that_dies_costs_one_shard(cluster: Nodes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="draftyard")
    wanted, made = shards(tmp_path, 6), []
    (tmp_path / "hold").touch()
    worker = threading.Thread(target=lambda: made.append(make(cluster, tmp_path, wanted)))
    worker.start()
    wait_for(lambda: (tmp_path / "notes/0-part-0.txt").exists(), "a shard on the first node")
    assert len(attempts(tmp_path)) == 1  # the other engine waits: there is no room for it
    joined = cluster.add()
    wait_for(lambda: (tmp_path / "notes/1-part-1.txt").exists(), "a shard on the node that joined")
    cluster.kill(joined)
    wait_for(lambda: "part-1.txt goes to another engine" in caplog.text, "the loss of the node")
    (tmp_path / "hold").unlink()
    worker.join(timeout=PATIENCE_SECONDS)
    assert made == [6]
    assert [path.read_text() for path in sorted(tmp_path.glob("part-*.txt"))] == [f"part-{i}.txt" for i in range(6)]
    assert attempts(tmp_path) == Counter({"part-1.txt": 2, **{f"part-{i}.txt": 1 for i in (0, 2, 3, 4, 5)}})
    assert len(re.findall("was lost", caplog.text)) == 1
    assert re.search(r"part-1\.txt: made by engine 0 ", caplog.text)


def test_what_was_made_is_told_once_and_what_is_there_is_not_made_again(cluster: Nodes, tmp_path: Path) -> None:
    wanted = shards(tmp_path, 4)
    wanted[0] = wanted[2] = Shard(job=None, size=10)
    told: list[str] = []
    rest = iter(wanted)
    done, first = skip_made(rest)
    assert (done, first) == (10, wanted[1])
    made = make(cluster, tmp_path, [wanted[1], *rest], on_made=lambda path, entry: told.append(path.name))
    assert (made, sorted(told)) == (2, ["part-1.txt", "part-3.txt"])
    assert attempts(tmp_path) == Counter({"part-1.txt": 1, "part-3.txt": 1})


def test_a_mistake_on_a_node_is_told_as_here(cluster: Nodes, tmp_path: Path) -> None:
    with pytest.raises(DraftyardError, match=r"engine 0 on .*: a\.key=3: must be even"):
        make(cluster, tmp_path, shards(tmp_path, 1, bound="mistake"))


def test_a_shard_that_is_not_seen_here_is_refused(cluster: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SHARED_SECONDS", 0.5)
    with pytest.raises(DraftyardError, match=r"part-0\.txt was written by engine 0 .* here it is missing: .*DRAFTYARD_WORK_DIR"):
        make(cluster, tmp_path, shards(tmp_path, 1, bound="elsewhere"))


def test_a_node_that_computes_in_another_dtype_is_refused(cluster: Nodes, tmp_path: Path) -> None:
    with pytest.raises(DraftyardError, match=r"has dtype float32, the driver bfloat16; set verifier\.engine_args\.dtype"):
        make(cluster, tmp_path, shards(tmp_path, 1), dtype="bfloat16")


def test_an_address_without_a_cluster_is_named(tmp_path: Path) -> None:
    used = load_runtime(ROOT)
    used = replace(used, ray=replace(used.ray, address="127.0.0.1:9"))
    with pytest.raises(DraftyardError, match=r"ray\.address=127\.0\.0\.1:9: no Ray cluster answers there"), Pool(FileWorker, (), used, "float32"):
        pass
