"""Shards in the resume area: beside them, in entries/, a small file each that says what the shard must hold.

A shard counts as finished when both are there. The digest is taken when the shard is written, so what happens to it later is noticed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftyard.artifacts.files import digest_file, link_or_copy, read_json, write_json
from draftyard.errors import ArtifactError

ENTRIES = "entries"


def entry_path(shard: Path) -> Path:
    """The file that describes `shard`."""
    return shard.parent / ENTRIES / f"{shard.stem}.json"


def write_entry(shard: Path, entry: dict[str, Any]) -> None:
    """Write the entry of `shard`, which names at least `file` and `sha256`."""
    write_json(entry_path(shard), entry)


class KeptShards:
    """Finished shards that stay where they were made (feature_store.StoredShards is the other kind)."""

    def find(self, path: Path) -> dict[str, Any] | None:
        """The index entry of the finished shard `path`; None when it is to be made."""
        entry: dict[str, Any] | None = read_json(entry_path(path)) if path.exists() and entry_path(path).exists() else None
        return entry

    def keep(self, path: Path, entry: dict[str, Any]) -> None:
        """Declare the shard `path`, just written, finished."""
        write_entry(path, entry)


def drop_damaged(directory: Path, suffix: str) -> list[str]:
    """Remove every shard (`*.suffix`) below `directory` that is not what its entry says, so that it is made again. Returns their names.

    A shard without an entry is one of a run that was killed between the two: it is removed as well, but not named.
    """
    dropped = []
    for shard in sorted(directory.glob(f"*.{suffix}")):
        entry = entry_path(shard)
        try:
            expected = read_json(entry)["sha256"] if entry.exists() else None
        except (ArtifactError, KeyError, TypeError):
            expected = ""
        if expected == digest_file(shard):
            continue
        if expected is not None:
            dropped.append(shard.name)
        shard.unlink()
        entry.unlink(missing_ok=True)
    return dropped


def link_shards(directory: Path, out: Path) -> dict[str, str]:
    """Give every finished shard of `directory` a second name in `out`. Returns name -> SHA-256, as their entries say."""
    out.mkdir(parents=True)
    digests = {}
    for path in sorted((directory / ENTRIES).glob("*.json")):
        entry = read_json(path)
        link_or_copy(directory / entry["file"], out / entry["file"])
        digests[entry["file"]] = entry["sha256"]
    return digests
