"""Hidden states from a cluster: the shards of data/hidden_states that a work area, or the feature store, is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from draftyard.artifacts.generations import Generation
from draftyard.cluster.pool import Pool, Shard, skip_made
from draftyard.cluster.workers import Job, ShardWorker, WorkerSettings, told
from draftyard.engines.capturing import CapturingEngine
from draftyard.engines.extract import ShardKeeper, SplitCapture, capture_part, shard_members
from draftyard.engines.recovery import Recovery
from draftyard.progress import Progress


@dataclass(frozen=True, kw_only=True)
class CaptureJob(Job):
    """A shard of hidden states. dtype: on disk. members: the conversations."""

    dtype: str
    members: list[Generation]


class CaptureWorker(ShardWorker):
    """Makes shards of data/hidden_states, and runs the canary."""

    def new_engine(self, log: Path) -> CapturingEngine:
        """See ShardWorker."""
        # What the connector writes is read back on this node: a disk of its own will do.
        self.capturing = CapturingEngine({**self.settings.config, "storage": str(self.scratch / "raw")}, self.settings.runtime, log)
        return self.capturing

    def make_shard(self, job: CaptureJob, recovery: Recovery) -> dict[str, Any]:
        """See ShardWorker."""
        return capture_part(self.capturing, job.members, job.path, job.dtype, recovery, lambda tokens: None)

    def canary(self, members: list[Generation], card: Path, params: dict[str, Any]) -> dict[str, Any]:
        """See CapturingEngine. Returns {"metrics"}, or {"error": sentence}."""
        with told() as outcome:
            outcome["metrics"] = self.capturing.canary(members, card, params)
        return outcome


def fill_states(
    plans: list[SplitCapture],
    generations: Callable[[str], Iterator[Generation]],
    directory: Path,
    settings: WorkerSettings,
    *,
    dtype: str,
    bounds: dict[str, tuple[int, str]],
    canary: tuple[Any, ...],
    kept: ShardKeeper,
) -> dict[str, Any]:
    """Run the canary, then have the missing shards of hidden states made below `directory`. Returns the canary's metrics.

    bounds: max_poisonous and bound (engines/recovery.py) of each split. kept: takes what was made. canary: the arguments of workers.CaptureWorker.canary.
    """

    def planned() -> Iterator[Shard]:
        for plan in plans:
            most, bound = bounds[plan.split]
            for path, members in shard_members(plan, generations(plan.split), directory):
                job = CaptureJob(path=path, max_poisonous=most, bound=bound, dtype=plan.dtype, members=slim(members))
                yield Shard(job=None if kept.find(path) is not None else job, size=sum(len(generation.token_ids) for generation in members))

    with Pool(CaptureWorker, (settings,), settings.runtime, dtype) as pool:
        metrics: dict[str, Any] = pool.first("canary", *canary)["metrics"]
        shards = planned()
        done, first = skip_made(shards)
        if first is not None:
            progress = Progress("hidden_states on ray", sum(sum(plan.lengths) for plan in plans), "tokens", done=done)
            made = pool.make(chain([first], shards), progress, done, on_made=kept.keep)
            progress.close(f"{made} shards by {len(pool.used)} engines")
    return metrics


def slim(members: list[Generation]) -> list[Generation]:
    """The conversations without their turns, which capturing does not need and which would travel twice."""
    return [dataclasses.replace(generation, turns=[]) for generation in members]
