"""data/generations/: the verifier's own answers as token ids, in jsonl shards per split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import atomic_writer
from draftyard.artifacts.lineage import recorded_files, require_file
from draftyard.artifacts.shards import write_entry
from draftyard.errors import ArtifactError

ARTIFACT = "generations"
SPLITS = ("train", "holdout")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answered turn. prompt_token_ids: the whole conversation so far, template applied once. output_token_ids: the answer, EOS included."""

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    text: str
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One answered conversation.

    token_ids: the last turn's prompt and answer. loss_spans: [start, end) index pairs into token_ids that the verifier
    itself wrote. An earlier answer is a span only where its ids reappear unchanged in the last turn's prompt.
    """

    id: str
    category: str
    sample: int
    turns: list[Turn]
    token_ids: list[int]
    loss_spans: list[tuple[int, int]]

    @property
    def prompt_length(self) -> int:
        """Tokens before the last answer."""
        return len(self.turns[-1].prompt_token_ids)


def join_turns(turns: list[Turn]) -> tuple[list[int], list[tuple[int, int]]]:
    """token_ids and loss_spans of a conversation (see Generation)."""
    last = turns[-1]
    token_ids = last.prompt_token_ids + last.output_token_ids
    spans = []
    for turn in turns:
        start = len(turn.prompt_token_ids)
        end = start + len(turn.output_token_ids)
        if token_ids[:end] == turn.prompt_token_ids + turn.output_token_ids:
            spans.append((start, end))
    return token_ids, spans


def shard_name(split: str, number: int) -> str:
    """File name of a shard."""
    return f"{split}-{number:05d}.jsonl"


def write_shard(path: Path, generations: Iterable[Generation]) -> None:
    """Write one shard atomically, a line per conversation; before it appears, its entry with the digest (see artifacts/shards.py)."""
    digest = hashlib.sha256()
    with atomic_writer(path, "wb") as file:
        for generation in generations:
            row: dict[str, Any] = dict(generation.__dict__)
            row["turns"] = [turn.__dict__ for turn in generation.turns]
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
            digest.update(line)
            file.write(line)
        write_entry(path, {"file": path.name, "sha256": digest.hexdigest()})


def read_shard(path: Path) -> Iterator[Generation]:
    """Read one shard line by line. Raises ArtifactError naming the file and line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                row["turns"] = [Turn(**turn) for turn in row["turns"]]
                row["loss_spans"] = [(int(start), int(end)) for start, end in row["loss_spans"]]
                generation = Generation(**row)
                if any(not 0 <= start <= end <= len(generation.token_ids) for start, end in generation.loss_spans):
                    raise ValueError(f"loss_spans reach beyond its {len(generation.token_ids)} tokens")
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ArtifactError(f"{path}:{number}: not a generation ({error}); re-run the stage generate") from None
            yield generation


def read_split(directory: Path, split: str) -> Iterator[Generation]:
    """All conversations of a split in order. A shard is held against the lineage before its first line comes out.

    Raises ArtifactError when there is no shard, a number is missing or a shard is damaged.
    """
    files = recorded_files(directory)
    shards = sorted({path.name for path in directory.glob(f"{split}-*.jsonl")} | {name for name in files if name.startswith(f"{split}-")})
    for number, name in enumerate(shards):
        if name != shard_name(split, number):
            raise ArtifactError(f"{directory / shard_name(split, number)}: shard is missing; fetch it with dvc pull, or re-run the stage generate")
    if not shards:
        raise ArtifactError(f"{directory}: holds no {split} shard; re-run the stage generate")
    for name in shards:
        yield from read_shard(require_file(directory, name, files))
