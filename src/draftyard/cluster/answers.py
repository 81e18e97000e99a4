"""Answers from a cluster: the shards of data/generations that a work area is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import read_json, write_json
from draftyard.artifacts.generations import write_shard
from draftyard.artifacts.prompts import Prompt
from draftyard.artifacts.shards import entry_path
from draftyard.cluster.pool import Pool, Shard, skip_made
from draftyard.cluster.workers import Job, ShardWorker, WorkerSettings
from draftyard.engines.answering import AnsweringEngine
from draftyard.engines.generate import Answerer, SplitPlan, answer_part, is_made, shard_parts, skipped_path
from draftyard.engines.recovery import Recovery
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.params.generate import GenerateParams
from draftyard.progress import Progress


@dataclass(frozen=True, kw_only=True)
class AnswerJob(Job):
    """A shard of answers. part: the (prompt, sample number) pairs."""

    plan: SplitPlan
    part: list[tuple[Prompt, int]]


class AnswerWorker(ShardWorker):
    """Makes shards of data/generations. params: of the group generate."""

    def __init__(self, number: int, settings: WorkerSettings, params: GenerateParams) -> None:
        super().__init__(number, settings)
        self.params = params
        self.answerer: Answerer | None = None

    def new_engine(self, log: Path) -> AnsweringEngine:
        """See ShardWorker."""
        self.answering = AnsweringEngine(self.settings.config, self.settings.runtime, log)
        return self.answering

    def make_shard(self, job: AnswerJob, recovery: Recovery) -> dict[str, Any]:
        """See ShardWorker."""
        if self.answerer is None:
            config = self.settings.config
            self.answerer = Answerer(self.answering, load_tokenizer(Path(config["model"]), config["trust_remote_code"]), self.params)
        generations, skipped = answer_part(self.answerer, job.plan, job.part, recovery, lambda finished, tokens: None)
        write_json(skipped_path(job.path), skipped)
        write_shard(job.path, generations)
        entry: dict[str, Any] = read_json(entry_path(job.path))
        return entry


def fill_answers(
    plans: list[SplitPlan],
    prompts: Callable[[str], Iterable[Prompt]],
    directory: Path,
    settings: WorkerSettings,
    *,
    params: GenerateParams,
    dtype: str,
    max_poisonous: int,
    bound: str,
) -> int:
    """Have the missing shards of answers made below `directory`. prompts: those of a split. Returns how many were made."""

    def planned() -> Iterator[Shard]:
        for plan in plans:
            for path, part in shard_parts(plan, prompts(plan.split), directory):
                job = AnswerJob(path=path, max_poisonous=max_poisonous, bound=bound, plan=plan, part=part)
                yield Shard(job=None if is_made(path) else job, size=len(part))

    shards = planned()
    done, first = skip_made(shards)
    if first is None:
        return 0
    progress = Progress("generate on ray", sum(plan.num_prompts * plan.samples for plan in plans), "prompts", done=done)
    with Pool(AnswerWorker, (settings, params), settings.runtime, dtype) as pool:
        made = pool.make(chain([first], shards), progress, done)
    progress.close(f"{made} shards by {len(pool.used)} engines")
    return made
