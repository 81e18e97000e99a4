"""Unfinished shards: whole ones stay, damaged ones are named and made again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from draftyard.artifacts.shards import drop_damaged, entry_path, link_shards, write_entry


def shard(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    write_entry(path, {"file": name, "sha256": hashlib.sha256(content).hexdigest()})
    return path


def test_only_damaged_shards_go(tmp_path: Path) -> None:
    names = ["flipped", "cut", "whole", "without-entry", "entry-cut"]
    paths = {name: shard(tmp_path, f"{name}.jsonl", name.encode() * 50) for name in names}
    paths["flipped"].write_bytes(b"F" + paths["flipped"].read_bytes()[1:])
    paths["cut"].write_bytes(paths["cut"].read_bytes()[:-1])
    entry_path(paths["without-entry"]).unlink()  # killed between the two
    entry_path(paths["entry-cut"]).write_text("{")
    (tmp_path / "other.json").write_text("{}")
    assert drop_damaged(tmp_path, "jsonl") == ["cut.jsonl", "entry-cut.jsonl", "flipped.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["other.json", "whole.jsonl"]
    assert [path.name for path in (tmp_path / "entries").iterdir()] == ["whole.json"]
    assert drop_damaged(tmp_path, "jsonl") == []
    assert drop_damaged(tmp_path / "nowhere", "jsonl") == []


def test_linked_shards_are_the_same_files(tmp_path: Path) -> None:
    paths = [shard(tmp_path / "shards", f"train-{number:05d}.jsonl", bytes([number])) for number in range(3)]
    (tmp_path / "shards/skipped").mkdir()
    digests = link_shards(tmp_path / "shards", tmp_path / "outs/built")
    assert digests == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    assert sorted(path.name for path in (tmp_path / "outs/built").iterdir()) == [path.name for path in paths]
    assert all((tmp_path / "outs/built" / path.name).samefile(path) for path in paths)
