"""data/prompts/: the prompts of the build, one JSON object per line in train.jsonl and holdout.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.files import atomic_writer
from draftyard.artifacts.lineage import Lineage, read_lineage, recorded_files, require_file, write_lineage
from draftyard.artifacts.lines import bounded_lines, parse_line
from draftyard.errors import ArtifactError

ARTIFACT = "prompts"
DIRECTORY = Path("data/prompts")
SPLITS = ("train", "holdout")
REMEDY = "re-run the stage prompts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What a user asks in one conversation: an optional system prompt, and the user's turns. The verifier writes every answer.

    id: unique over both splits. category: the name under which figures are reported.
    """

    id: str
    category: str
    system: str | None
    turns: tuple[str, ...]


def prompt_to_row(prompt: Prompt) -> dict[str, Any]:
    """The JSON object of a prompt; `system` is left out when there is none."""
    system = {} if prompt.system is None else {"system": prompt.system}
    return {"id": prompt.id, "category": prompt.category, **system, "turns": list(prompt.turns)}


def prompt_from_row(row: object) -> Prompt:
    """The prompt of a JSON object as `prompt_to_row` writes it. Raises ValueError with the rule that is broken."""
    if not isinstance(row, dict):
        raise ValueError(f"is a {type(row).__name__}, expected an object")
    if unknown := set(row) - {"id", "category", "system", "turns"}:
        raise ValueError(f"has the unknown key {min(unknown)[:40]!r}")
    for key in ("id", "category"):
        if not isinstance(row.get(key), str) or not row[key]:
            raise ValueError(f"{key} must be a text that is not empty")
    system, turns = row.get("system"), row.get("turns")
    if system is not None and not isinstance(system, str):
        raise ValueError("system must be a text")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ValueError("turns must be a list of at least one text, none empty")
    return Prompt(id=row["id"], category=row["category"], system=system, turns=tuple(turns))


def split_path(directory: Path, split: str) -> Path:
    """The file of a split inside the artifact's directory."""
    return directory / f"{split}.jsonl"


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> int:
    """Write prompts atomically in the order given. Returns how many."""
    count = 0
    with atomic_writer(path) as file:
        for prompt in prompts:
            file.write(json.dumps(prompt_to_row(prompt), ensure_ascii=False) + "\n")
            count += 1
    return count


def read_prompts(path: Path) -> Iterator[Prompt]:
    """Read prompts one by one. Raises ArtifactError with file:line for a broken row or a repeated id."""
    seen: dict[str, int] = {}
    for number, prompt in _numbered(path):
        if prompt.id in seen:
            raise ArtifactError(f"{path}:{number}: id {prompt.id[:80]!r} is also that of line {seen[prompt.id]}; {REMEDY}")
        seen[prompt.id] = number
        yield prompt


def _numbered(path: Path) -> Iterator[tuple[int, Prompt]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; {REMEDY} (dvc repro), or fetch it (dvc pull)") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from None
    with file:
        for line in bounded_lines(file):
            try:
                prompt = prompt_from_row(parse_line(line))
            except ValueError as error:
                raise ArtifactError(f"{path}:{line.number}: not a prompt: {error}; {REMEDY}") from None
            yield line.number, prompt


def read_split(directory: Path, split: str) -> list[Prompt]:
    """All prompts of a split in order. Raises ArtifactError as `stream_split`."""
    return list(stream_split(directory, split))


def stream_split(directory: Path, split: str) -> Iterator[Prompt]:
    """The prompts of a split in order, one at a time and none remembered.

    Raises ArtifactError as `read_prompts`, for a split without prompts, and for a file that its lineage does not know.
    """
    path = split_path(directory, split)
    files = recorded_files(directory)
    if files:
        require_file(directory, path.name, files)
    # With a lineage the file is what the stage wrote, whose ids are unique: nothing has to be remembered to see it again.
    prompts = (prompt for _, prompt in _numbered(path)) if files else read_prompts(path)
    first = next(prompts, None)
    if first is None:
        raise ArtifactError(f"{path}: holds no prompt; {REMEDY}")
    yield first
    yield from prompts


def write_prompts_lineage(directory: Path, *, inputs: dict[str, str], params: dict[str, Any], packages: dict[str, str], facts: dict[str, Any]) -> Lineage:
    """Write lineage.json of the finished directory (see artifacts/lineage.py)."""
    return write_lineage(directory, ARTIFACT, inputs=inputs, params=params, packages=packages, facts=facts)


def read_prompts_lineage(directory: Path) -> Lineage:
    """The lineage of data/prompts. Raises ArtifactError when it is absent or that of another artifact."""
    return read_lineage(directory, ARTIFACT)
