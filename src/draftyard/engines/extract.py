"""Capturing the verifier's hidden states for answered conversations, shard by shard, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch

from draftyard.artifacts.generations import Generation
from draftyard.artifacts.hidden_states import Sample
from draftyard.artifacts.shards import KeptShards
from draftyard.engines.recovery import Recovery
from draftyard.engines.vllm_engine import RequestLoop, greedy_params
from draftyard.errors import DraftyardError
from draftyard.progress import Progress


def capture(llm: Any, generations: list[Generation], hidden_size: int, num_states: int) -> Iterator[Sample]:
    """Capture whole conversations on an extraction engine; yields them in the order given.

    Every sample is checked: the token ids that come back are those that were asked for, one row per token, finite.
    Raises DraftyardError naming the sample otherwise.
    """
    from draftyard.engines.connector import take_hidden_states  # imports vllm, which a mistake in the params should not wait for

    loop = RequestLoop(llm)
    sampling = greedy_params(1)
    for number, generation in enumerate(generations):
        loop.add(str(number), generation.token_ids, sampling)
    waiting: dict[int, str] = {}
    ready: dict[int, Sample] = {}
    wanted = 0
    for output in loop.finished(drain=lambda: bool(waiting)):
        if output is not None:
            waiting[int(output.request_id)] = output.kv_transfer_params["hidden_states_path"]
        for number in list(waiting):
            captured = take_hidden_states(waiting[number])
            if captured is not None:
                del waiting[number]
                ready[number] = _check(*captured, generations[number], hidden_size, num_states)
        while wanted in ready:
            yield ready.pop(wanted)
            wanted += 1


def _check(states: torch.Tensor, token_ids: torch.Tensor, generation: Generation, hidden_size: int, num_states: int) -> Sample:
    name = f"{generation.id}/{generation.sample}"
    if token_ids.tolist() != generation.token_ids:
        raise DraftyardError(f"hidden states of sample {name} belong to other tokens than were asked for; the engine reordered or cut the prompt")
    expected = (len(generation.token_ids), num_states, hidden_size)
    if tuple(states.shape) != expected:
        raise DraftyardError(f"hidden states of sample {name} have shape {tuple(states.shape)}, expected {expected} (tokens, states, hidden)")
    if not bool(torch.isfinite(states).all()):
        raise DraftyardError(f"hidden states of sample {name} hold NaN or infinity; capture with another dtype (verifier.engine_args.dtype)")
    mask = torch.zeros(len(token_ids), dtype=torch.bool)
    for start, end in generation.loss_spans:
        mask[start:end] = True
    return Sample(
        id=generation.id,
        category=generation.category,
        sample=generation.sample,
        aux=states[:, :-1].flatten(1).clone(),
        last=states[:, -1].clone(),
        token_ids=token_ids,
        loss_mask=mask,
    )


def plan_shards(lengths: Sequence[int], bytes_per_token: int, shard_bytes: int) -> list[range]:
    """Consecutive ranges of samples whose states fill at most `shard_bytes` each (at least one sample)."""
    ranges, start, size = [], 0, 0
    for i, length in enumerate(lengths):
        if size and size + length * bytes_per_token > shard_bytes:
            ranges.append(range(start, i))
            start, size = i, 0
        size += length * bytes_per_token
    if size:
        ranges.append(range(start, len(lengths)))
    return ranges


class CaptureEngine(Protocol):
    """Captures whole conversations into a shard of hidden states (SupervisedEngine does). Raises EngineFailure when the engine is lost."""

    def capture_shard(self, generations: list[Generation], path: Path, dtype: str, on_tokens: Callable[[int], None]) -> dict[str, Any]:
        """Write the shard `path` and return its index entry; on_tokens gets the tokens of each sample captured."""


class ShardKeeper(Protocol):
    """What becomes of a finished shard (shards.KeptShards, feature_store.StoredShards)."""

    def find(self, path: Path) -> dict[str, Any] | None:
        """The index entry of a finished shard; None when it is to be made at `path`."""

    def keep(self, path: Path, entry: dict[str, Any]) -> None:
        """Take the shard `path`, just written."""


KEPT_THERE = KeptShards()


@dataclass(frozen=True, kw_only=True)
class SplitCapture:
    """How one split is stored. lengths: tokens of each of its conversations, in order. shard_bytes: of the states in one shard, at most."""

    split: str
    lengths: Sequence[int]
    bytes_per_token: int
    shard_bytes: int
    dtype: str


def extract_split(
    engine: CaptureEngine, plan: SplitCapture, generations: Iterator[Generation], directory: Path, *, recovery: Recovery, kept: ShardKeeper = KEPT_THERE
) -> tuple[list[dict[str, Any]], int]:
    """Capture one split into safetensors shards below `directory`; shards that `kept` finds are not made again. Holds the conversations of one shard at a time.

    Returns the index entries of the split, and the number of resumed shards. An entry whose engine failed on samples names them under "skipped".
    """
    entries, resumed, done = list[dict[str, Any]](), 0, 0
    progress = Progress(f"hidden_states {plan.split}", sum(plan.lengths), "tokens")
    for path, members in shard_members(plan, generations, directory):
        entry = kept.find(path)
        if entry is not None:
            resumed += 1
        else:

            def on_captured(tokens: int, base: int = done) -> None:
                progress.update(base + tokens)

            entry = capture_part(engine, members, path, plan.dtype, recovery, on_captured)
            kept.keep(path, entry)
        entries.append(entry)
        done += sum(len(generation.token_ids) for generation in members)
        progress.update(done)
    progress.close()
    return entries, resumed


def shard_members(plan: SplitCapture, generations: Iterator[Generation], directory: Path) -> Iterator[tuple[Path, list[Generation]]]:
    """The shards of a split: where each lies below `directory`, and the conversations that it holds."""
    for number, part in enumerate(plan_shards(plan.lengths, plan.bytes_per_token, plan.shard_bytes)):
        yield directory / f"{plan.split}-{number:05d}.safetensors", list(islice(generations, len(part)))


def capture_part(
    engine: CaptureEngine, members: list[Generation], path: Path, dtype: str, recovery: Recovery, on_captured: Callable[[int], None]
) -> dict[str, Any]:
    """One shard's entry; the engine may fail on the way. on_captured gets the tokens of the shard captured so far."""

    def run(samples: list[Generation]) -> dict[str, Any]:
        captured = 0

        def on_tokens(tokens: int) -> None:
            nonlocal captured
            captured += tokens
            on_captured(captured)

        if not samples:
            raise DraftyardError(f"the engine fails on every sample of {path.name}, each by itself; its log is in .work/logs")
        return engine.capture_shard(samples, path, dtype, on_tokens)

    entry, poisonous = recovery.run(members, run, lambda g: f"{g.id}/{g.sample}")
    return {**entry, **({"skipped": poisonous} if poisonous else {})}
