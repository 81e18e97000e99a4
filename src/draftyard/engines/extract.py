"""Capturing the verifier's hidden states for answered conversations, shard by shard, resumable."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from draftyard.artifacts.files import read_json, write_json
from draftyard.artifacts.generations import Generation
from draftyard.artifacts.hidden_states import Sample, write_shard
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


def plan_shards(lengths: list[int], bytes_per_token: int, shard_bytes: int) -> list[range]:
    """Consecutive ranges of samples whose states fill at most `shard_bytes` each (at least one sample)."""
    ranges, start, size = [], 0, 0
    for i, length in enumerate(lengths):
        if size and size + length * bytes_per_token > shard_bytes:
            ranges.append(range(start, i))
            start, size = i, 0
        size += length * bytes_per_token
    if start < len(lengths):
        ranges.append(range(start, len(lengths)))
    return ranges


def extract_split(
    llm: Any,
    split: str,
    generations: Iterator[Generation],
    lengths: list[int],
    directory: Path,
    *,
    hidden_size: int,
    num_states: int,
    dtype: str,
    shard_bytes: int,
) -> tuple[list[dict[str, Any]], int]:
    """Capture one split into safetensors shards below `directory`; shards already there are kept. Holds one shard at a time.

    lengths: tokens of each of `generations`, in order. Returns the index entries of the split and the number of resumed shards.
    """
    bytes_per_token = num_states * hidden_size * (4 if dtype == "float32" else 2)
    entries, resumed, done = [], 0, 0
    progress = Progress(f"hidden_states {split}", sum(lengths), "tokens")
    for number, part in enumerate(plan_shards(lengths, bytes_per_token, shard_bytes)):
        path = directory / f"{split}-{number:05d}.safetensors"
        entry_path = directory / "entries" / f"{path.stem}.json"
        members = list(islice(generations, len(part)))
        if path.exists() and entry_path.exists():
            entries.append(read_json(entry_path))
            resumed += 1
            done += sum(lengths[part.start : part.stop])
        else:
            samples = []
            for sample in capture(llm, members, hidden_size, num_states):
                samples.append(sample)
                done += len(sample.token_ids)
                progress.update(done)
            entries.append(write_shard(path, samples, dtype))
            write_json(entry_path, entries[-1])
        progress.update(done)
    progress.close()
    return entries, resumed
