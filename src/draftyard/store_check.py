"""`draftyard store`: whether the feature store still holds every shard that the index names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.feature_store import REMAKE, FeatureStore
from draftyard.artifacts.files import read_json
from draftyard.disk import human_bytes
from draftyard.errors import ArtifactError

INDEX = Path("data/hidden_states/index.json")


@dataclass(frozen=True)
class ShardState:
    """One shard of the index. state: present, missing, or damaged (of another size, or, when it was read, of another digest)."""

    file: str
    sha256: str
    bytes: int
    state: str


def check_store(root: Path, store: FeatureStore, *, read: bool, drop: bool) -> list[ShardState]:
    """The shards of the repository's index. read: read every shard and compare its digest. drop: remove the damaged ones.

    Raises ArtifactError when the index names no store.
    """
    index = read_json(root / INDEX)
    if not isinstance(index, dict) or index.get("storage") != "store":
        raise ArtifactError(f"{root / INDEX}: its shards are DVC outputs (hidden_states.storage: outs); dvc status looks after them")
    shards = [shard for split in index["splits"].values() for shard in split]
    states = [ShardState(shard["file"], shard["sha256"], shard["bytes"], _state(store, shard, read)) for shard in shards]
    if drop:
        for sha256 in {shard.sha256 for shard in states if shard.state == "damaged"}:
            store.remove(sha256)
    return states


def _state(store: FeatureStore, shard: dict[str, Any], read: bool) -> str:
    size = store.size(shard["sha256"])
    if size is None:
        return "missing"
    damaged = size != shard["bytes"] or (read and store.digest(shard["sha256"]) != shard["sha256"])
    return "damaged" if damaged else "present"


def to_json(store: FeatureStore, states: list[ShardState], dropped: bool) -> dict[str, Any]:
    """The object of --json."""
    return {"url": store.url, "shards": [dict(state.__dict__) for state in states], "dropped": dropped}


def render(store: FeatureStore, states: list[ShardState], dropped: bool) -> str:
    """What is there, each shard that is not, and what to run."""
    return "\n".join(_lines(store, states, dropped))


def _lines(store: FeatureStore, states: list[ShardState], dropped: bool) -> Iterator[str]:
    yield f"{INDEX}: {len(states)} shards, {human_bytes(sum(state.bytes for state in states))}, in {store.url}"
    lost = [state for state in states if state.state != "present"]
    for state in lost:
        removed = ", removed" if dropped and state.state == "damaged" else ""
        yield f"  {state.state}{removed}: {state.file} ({human_bytes(state.bytes)}, {state.sha256})"
    if any(state.state == "damaged" for state in lost) and not dropped:
        yield "remove the damaged shards: draftyard store --drop-damaged"
    elif lost:
        yield f"make them again, and nothing else: {REMAKE}; then dvc repro"
    else:
        yield "all of them are there"
