"""Generation shards: round trip, spans of several turns, and lines that are refused by number."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.generations import Generation, Turn, join_turns, read_shard, read_split, shard_name, write_shard
from draftyard.artifacts.lineage import write_lineage
from draftyard.errors import ArtifactError


def turn(prompt: list[int], output: list[int]) -> Turn:
    return Turn(prompt_token_ids=prompt, output_token_ids=output, text="é\u2028 text", finish_reason="stop")


def generation(name: str, *turns: Turn) -> Generation:
    token_ids, spans = join_turns(list(turns))
    return Generation(id=name, category="chat", sample=0, turns=list(turns), token_ids=token_ids, loss_spans=spans)


def test_one_turn_is_prompt_and_answer() -> None:
    assert join_turns([turn([1, 2, 3], [4, 5])]) == ([1, 2, 3, 4, 5], [(3, 5)])


def test_an_earlier_answer_counts_where_its_ids_come_back_unchanged() -> None:
    first, second = turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 9, 8], [5])
    assert join_turns([first, second]) == ([1, 2, 3, 4, 9, 8, 5], [(2, 4), (6, 7)])


@pytest.mark.parametrize("prompt", [[1, 2, 3, 7, 9, 8], [0, 2, 3, 4, 9, 8], [1, 2, 3]])
def test_an_earlier_answer_that_is_tokenised_otherwise_is_no_span(prompt: list[int]) -> None:
    token_ids, spans = join_turns([turn([1, 2], [3, 4]), turn(prompt, [5])])
    assert token_ids == [*prompt, 5]
    assert spans == [(len(prompt), len(prompt) + 1)]


def test_a_shard_comes_back_as_it_was(tmp_path: Path) -> None:
    written = [generation("a", turn([1], [2, 3])), generation("b", turn([1], [2]), turn([1, 2, 4], [5]))]
    write_shard(tmp_path / "s.jsonl", written)
    assert list(read_shard(tmp_path / "s.jsonl")) == written
    assert written[1].prompt_length == 3
    first = (tmp_path / "s.jsonl").read_bytes()
    write_shard(tmp_path / "s.jsonl", written)
    assert (tmp_path / "s.jsonl").read_bytes() == first
    assert first.count(b"\n") == 2


def row(**changes: Any) -> bytes:
    values: dict[str, Any] = {
        "id": "a",
        "category": "c",
        "sample": 0,
        "turns": [{"prompt_token_ids": [1], "output_token_ids": [2], "text": "x", "finish_reason": "stop"}],
        "token_ids": [1, 2],
        "loss_spans": [[1, 2]],
    }
    values.update(changes)
    return json.dumps({key: value for key, value in values.items() if value != "absent"}).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"\xff",
        b"[]",
        b"",
        row(turns=[{"text": "x"}]),
        row(turns="absent"),
        row(id="absent"),
        row(extra=1),
        row(loss_spans=[[1]]),
        row(loss_spans=[[1, 3]]),
        row(loss_spans=[[-1, 2]]),
        row(loss_spans=[[2, 1]]),
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_is_named_by_its_number(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(row() + b"\n" + line + b"\n")
    reader = read_shard(tmp_path / "s.jsonl")
    assert next(reader).id == "a"
    with pytest.raises(ArtifactError, match=r"s\.jsonl:2: not a generation .*re-run the stage generate"):
        next(reader)


def test_a_split_is_its_shards_in_order(tmp_path: Path) -> None:
    for number in range(12):
        write_shard(tmp_path / shard_name("train", number), [generation(f"{number}", turn([1], [2]))] if number != 5 else [])
    write_shard(tmp_path / shard_name("holdout", 0), [generation("h", turn([1], [2]))])
    assert [g.id for g in read_split(tmp_path, "train")] == [str(n) for n in range(12) if n != 5]
    assert [g.id for g in read_split(tmp_path, "holdout")] == ["h"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for number in (0, 2):
        write_shard(tmp_path / shard_name("train", number), [])
    with pytest.raises(ArtifactError, match=r"train-00001\.jsonl: shard is missing"):
        list(read_split(tmp_path, "train"))
    with pytest.raises(ArtifactError, match="holds no holdout shard"):
        list(read_split(tmp_path, "holdout"))


def test_a_shards_entry_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    write_shard(tmp_path / "train-00000.jsonl", [generation("a", turn([1], [2]))])
    entry = json.loads((tmp_path / "entries/train-00000.json").read_text())
    assert entry == {"file": "train-00000.jsonl", "sha256": hashlib.sha256((tmp_path / "train-00000.jsonl").read_bytes()).hexdigest()}


@pytest.mark.parametrize("damage", ["flip", "cut", "last shard missing", "foreign shard"])
def test_a_shard_that_its_lineage_does_not_know_is_refused_before_its_first_line(damage: str, tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / shard_name("train", number), [generation(f"g{number}", turn([1], [2])), generation(f"h{number}", turn([1], [2]))])
    write_lineage(tmp_path, "generations", inputs={}, params={}, packages={})
    assert [g.id for g in read_split(tmp_path, "train")] == ["g0", "h0", "g1", "h1"]
    path = tmp_path / shard_name("train", 1)
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content.replace(b"h1", b"h2"))  # as good a line as any
    elif damage == "cut":
        path.write_bytes(content[: content.index(b"\n") + 1])
    elif damage == "last shard missing":
        path.unlink()
    else:
        write_shard(tmp_path / shard_name("train", 2), [])
    read = []
    with pytest.raises(ArtifactError, match=r"train-0000[12]\.jsonl: (SHA-256|is missing).*draftyard lineage .*--files"):
        for g in read_split(tmp_path, "train"):
            read.append(g.id)
    assert read == (["g0", "h0", "g1", "h1"] if damage == "foreign shard" else ["g0", "h0"])
