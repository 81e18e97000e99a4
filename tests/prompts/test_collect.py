"""The pool: distinct prompts with unique ids, every line counted once."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.prompts import Prompt
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.prompts.collect import Collection, collect
from draftyard.prompts.sources import open_sources
from draftyard.prompts.spool import PromptSpool

from .defaults import params


def gather(root: Path, *files: list[Any], **changes: Any) -> tuple[Collection, list[Prompt]]:
    sources = []
    for number, rows in enumerate(files):
        path = root / f"data/sources/{'abc'[number]}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        sources.append({"kind": "jsonl", "path": path.relative_to(root).as_posix()})
    given = params(sources=tuple(sources), **changes)
    store: list[Prompt] = []
    return collect(open_sources(given.sources, root), given, store), store


def test_exact_duplicates_after_normalisation_keep_the_first(tmp_path: Path) -> None:
    collection, store = gather(
        tmp_path, [{"prompt": "Hello  THERE"}, {"prompt": "bye"}], [{"turns": ["hello there"]}, {"prompt": "hello there", "system": "S"}]
    )
    assert [(p.turns, p.system) for p in store] == [(("Hello  THERE",), None), (("bye",), None), (("hello there",), "S")]
    assert collection.counts.duplicates == {("data/sources/b.jsonl", "b"): 1}


def test_ids_are_unique_over_sources_and_kept_where_they_can_be(tmp_path: Path) -> None:
    rows = [
        [{"id": "q-1", "prompt": "one"}, {"id": 7, "prompt": "two"}],
        [{"id": "q-1", "prompt": "three"}, {"prompt": "four"}, {"id": "b-7", "prompt": "five"}, {"id": 7, "prompt": "six"}],
    ]
    _, store = gather(tmp_path, *rows)
    ids = [p.id for p in store]
    assert ids[:2] == ["q-1", "a-7"]
    assert ids[2].startswith("q-1-")
    assert ids[3].startswith("b-")
    assert len(ids[3]) == 18
    assert ids[4] == "b-7"
    assert ids[5].startswith("b-7-")
    assert len(set(ids)) == 6


def test_an_id_that_imitates_a_made_one_does_not_collide(tmp_path: Path) -> None:
    _, (plain, _) = gather(tmp_path, [{"prompt": "one"}, {"prompt": "two"}])
    _, store = gather(tmp_path, [{"id": plain.id, "prompt": "other"}, {"prompt": "one"}])
    assert len({p.id for p in store}) == 2


def test_rejects_within_the_bound_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[Any] = [{"prompt": f"number {i}"} for i in range(7)] + ["{\n", {"prompt": "", "category": "code"}, {"prompt": 1}]
    collection, store = gather(tmp_path, rows, max_reject_fraction=0.3)
    assert len(store) == 7
    assert collection.counts.rejected == {("data/sources/a.jsonl", "a"): 2, ("data/sources/a.jsonl", "code"): 1}
    assert list(collection.rejects["data/sources/a.jsonl"]) == [f"data/sources/a.jsonl:{n}" for n in (8, 9, 10)]
    assert "rejected data/sources/a.jsonl:8: is not JSON" in caplog.text


def test_too_many_rejects_name_the_first_and_the_bound(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "fine"}, {"prompt": "also"}, *["broken\n"] * 9]
    with pytest.raises(ArtifactError) as error:
        gather(tmp_path, rows, max_reject_fraction=0.5)
    text = str(error.value)
    assert "source data/sources/a.jsonl: 9 of 11 lines are rejected, more than prompts.max_reject_fraction=0.5" in text
    assert "data/sources/a.jsonl:3: is not JSON" in text
    assert "and 4 more" in text


def test_the_bound_holds_for_each_source(tmp_path: Path) -> None:
    """A small broken file does not hide behind a large sound one."""
    with pytest.raises(ArtifactError, match=r"source data/sources/b\.jsonl: 1 of 1 lines"):
        gather(tmp_path, [{"prompt": f"number {i}"} for i in range(50)], ["broken\n"], max_reject_fraction=0.1)


def test_a_source_without_lines(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"source data/sources/b\.jsonl: holds no line"):
        gather(tmp_path, [{"prompt": "x"}], ["\n"])


def test_nothing_left_to_train_on_says_why(tmp_path: Path) -> None:
    rows: list[Any] = [{"prompt": "one"}, {"prompt": "One"}, {"prompt": "two"}, "broken\n"]
    with pytest.raises(DraftyardError) as error:
        gather(tmp_path, rows, holdout_prompts=2, max_reject_fraction=0.5)
    assert str(error.value) == (
        "prompts.holdout_prompts=2: no prompt is left to train on: 4 lines read, 1 rejected, 1 duplicates, 2 distinct prompts; add prompts, or hold out fewer"
    )


def test_a_column_that_is_no_category(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the rows name 101 categories .*`category: NAME`"):
        gather(tmp_path, [{"prompt": f"number {i}", "category": f"user {i}"} for i in range(101)])


def test_spool_is_a_sequence_that_leaves_nothing(tmp_path: Path) -> None:
    prompts = [Prompt(id=str(i), category="c", system=None if i % 2 else "S", turns=("é" * i + "x",)) for i in range(10)]
    with PromptSpool(tmp_path / ".spool") as spool:
        for prompt in prompts[:5]:
            spool.append(prompt)
        assert spool[1] == prompts[1]
        for prompt in prompts[5:]:  # appending after reading
            spool.append(prompt)
        assert list(spool) == prompts
        assert spool[-1] == prompts[-1]
        assert spool[2:4] == prompts[2:4]
        with pytest.raises(IndexError):
            spool[10]
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    path = tmp_path / "data/sources/a.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("w") as file:
        for i in range(400):
            file.write(json.dumps({"prompt": f"{i} " + "x" * 50_000}) + "\n")  # 20 MB
    given = params()
    with PromptSpool(tmp_path / ".spool") as spool:
        tracemalloc.start()
        collect(open_sources(given.sources, tmp_path), given, spool)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3 << 20
