"""The feature store: shards by digest, read in place or through a bounded cache, and what is missing or damaged is told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from draftyard.artifacts.feature_store import FeatureStore, StoredShards, find_store, open_store
from draftyard.artifacts.files import digest_file, read_json
from draftyard.artifacts.hidden_states import HiddenStates, write_index, write_shard
from draftyard.artifacts.shards import write_entry
from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.runtime import load_runtime
from draftyard.store_check import check_store, render
from tests.artifacts.test_hidden_states import HIDDEN, SAMPLES

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
NUMBER = itertools.count()


@pytest.fixture(params=["directory", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FeatureStore]:
    """A store in a directory, and one behind a URL (fsspec's file system in memory)."""
    url = str(tmp_path / "store") if request.param == "directory" else f"memory://store-{next(NUMBER)}"
    yield FeatureStore(url, tmp_path / "work", GIB)
    if request.param == "url":
        fsspec.filesystem("memory").store.clear()


def build(root: Path, store: FeatureStore, key: str = "k") -> Path:
    """data/hidden_states of a repository whose two shards (a and b; c) lie in `store`, as the stage leaves it."""
    shards = root / "shards"
    entries = []
    with StoredShards(store, key) as kept:
        for number, members in enumerate((SAMPLES[:2], SAMPLES[2:])):
            path = shards / f"train-{number:05d}.safetensors"
            assert kept.find(path) is None
            entries.append(write_shard(path, members, "bfloat16"))
            kept.keep(path, entries[-1])
    directory = root / "data/hidden_states"
    write_index(directory, aux_layer_ids=(1, 2, 3), hidden_size=HIDDEN, dtype="bfloat16", splits={"train": entries, "holdout": []}, storage="store")
    return directory


def entries_of(directory: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = read_json(directory / "index.json")["splits"]["train"]
    return entries


def test_samples_are_read_through_the_index(store: FeatureStore, tmp_path: Path) -> None:
    directory = build(tmp_path, store)
    assert [path.name for path in directory.iterdir()] == ["index.json"]
    assert list((tmp_path / "shards").rglob("*.*")) == []  # what is stored is not kept twice
    data = HiddenStates(directory, store)
    for written, ref in zip(SAMPLES, data.refs("train"), strict=True):
        read = data.load(ref)
        assert torch.equal(read.aux, written.aux.to(torch.bfloat16))
        assert torch.equal(data.loss_mask(ref), written.loss_mask)


def test_a_second_build_of_the_same_key_finds_every_shard(store: FeatureStore, tmp_path: Path) -> None:
    entries = entries_of(build(tmp_path, store))
    with StoredShards(store, "k") as kept:
        assert [kept.find(tmp_path / entry["file"]) for entry in entries] == entries
    with StoredShards(store, "other") as kept:
        assert kept.find(tmp_path / entries[0]["file"]) is None


def test_a_missing_shard_is_told_and_alone_is_not_found(store: FeatureStore, tmp_path: Path) -> None:
    directory = build(tmp_path, store)
    first, second = entries_of(directory)
    store.remove(first["sha256"])
    with StoredShards(store, "k") as kept:
        assert kept.find(tmp_path / first["file"]) is None
        assert kept.find(tmp_path / second["file"]) == second
    data = HiddenStates(directory, store)
    data.load(data.refs("train")[2])
    with pytest.raises(ArtifactError, match=r"shard train-00000\.safetensors .* is missing; draftyard store .*dvc repro --force --single-item hidden_states"):
        data.load(data.refs("train")[0])
    states = check_store(tmp_path, store, read=False, drop=False)
    assert [state.state for state in states] == ["missing", "present"]
    assert "missing: train-00000.safetensors" in render(store, states, False)
    assert "dvc repro --force --single-item hidden_states; then dvc repro" in render(store, states, False)


def test_a_damaged_shard_is_refused_and_removed_on_request(store: FeatureStore, tmp_path: Path) -> None:
    directory = build(tmp_path, store)
    first, _ = entries_of(directory)
    name = f"{store._base}/objects/{first['sha256'][:2]}/{first['sha256']}.safetensors"
    content = bytearray(store._fs.cat_file(name))
    content[-1] ^= 1
    store._fs.pipe_file(name, bytes(content))
    data = HiddenStates(directory, store)
    with pytest.raises(ArtifactError, match=rf"train-00000\.safetensors: digest [0-9a-f]+, index.json says {first['sha256']}: it is damaged"):
        data.load(data.refs("train")[0])
    assert [state.state for state in check_store(tmp_path, store, read=False, drop=False)] == ["present", "present"]  # of the right size
    read = check_store(tmp_path, store, read=True, drop=False)
    assert [state.state for state in read] == ["damaged", "present"]
    assert "draftyard store --drop-damaged" in render(store, read, False)
    dropped = check_store(tmp_path, store, read=True, drop=True)
    assert "damaged, removed: train-00000.safetensors" in render(store, dropped, True)
    assert [state.state for state in check_store(tmp_path, store, read=False, drop=False)] == ["missing", "present"]


def test_a_truncated_shard_is_stored_again(store: FeatureStore, tmp_path: Path) -> None:
    first, _ = entries_of(build(tmp_path, store))
    name = f"{store._base}/objects/{first['sha256'][:2]}/{first['sha256']}.safetensors"
    store._fs.pipe_file(name, store._fs.cat_file(name)[:-1])
    path = tmp_path / "again" / first["file"]
    write_shard(path, SAMPLES[:2], "bfloat16")
    with StoredShards(store, "k") as kept:
        assert kept.find(path) is None
        kept.keep(path, first)
    assert store.digest(first["sha256"]) == first["sha256"]


def test_a_shard_that_could_not_be_stored_is_stored_by_the_next_run(tmp_path: Path) -> None:
    store = FeatureStore(str(tmp_path / "store"), tmp_path / "work", GIB)
    path = tmp_path / "shards" / "train-00000.safetensors"
    entry = write_shard(path, SAMPLES, "bfloat16")
    (tmp_path / "store").write_text("a file where the store should be")
    with pytest.raises(DraftyardError, match="the feature store failed"), StoredShards(store, "k") as kept:
        kept.keep(path, entry)
    (tmp_path / "store").unlink()
    assert path.exists()
    with StoredShards(store, "k") as kept:
        assert kept.find(path) == entry
    assert not path.exists()
    assert store.digest(entry["sha256"]) == entry["sha256"]


def test_an_entry_of_the_work_area_counts_only_with_its_shard(tmp_path: Path) -> None:
    path = tmp_path / "shards" / "train-00000.safetensors"
    write_entry(path, {"file": path.name, "sha256": "0" * 64, "bytes": 1})
    with StoredShards(FeatureStore(str(tmp_path / "store"), tmp_path / "work", GIB), "k") as kept:
        assert kept.find(path) is None


def test_the_cache_stays_within_its_bound_and_is_read_again_without_the_store(tmp_path: Path) -> None:
    url = f"memory://store-{next(NUMBER)}"
    directory = build(tmp_path, FeatureStore(url, tmp_path / "work", GIB))
    first, second = entries_of(directory)
    bound = max(first["bytes"], second["bytes"]) + 10
    store = FeatureStore(url, tmp_path / "work", bound)
    data = HiddenStates(directory, store)
    a, _, c = data.refs("train")
    for ref in (a, c, a, c):
        data.load(ref)
        cached = list((tmp_path / "work/features/cache").glob("*.safetensors"))
        assert [digest_file(path) for path in cached] == [first["sha256"] if ref is a else second["sha256"]]
        assert len(data._open) == 1  # the other one's map is gone too, and with it its disk space
    fsspec.filesystem("memory").store.clear()
    assert torch.equal(HiddenStates(directory, store).load(c).last, SAMPLES[2].last.to(torch.bfloat16))
    with pytest.raises(ArtifactError, match=r"shard train-00000\.safetensors .* is missing"):
        HiddenStates(directory, store).load(a)


def test_a_cache_smaller_than_a_shard_is_refused_by_its_key(tmp_path: Path) -> None:
    url = f"memory://store-{next(NUMBER)}"
    directory = build(tmp_path, FeatureStore(url, tmp_path / "work", GIB))
    data = HiddenStates(directory, FeatureStore(url, tmp_path / "work", 100))
    with pytest.raises(ParamError, match=r"store\.cache_gib=.*the shard train-00000\.safetensors alone has"):
        data.load(data.refs("train")[0])


def test_a_digest_of_the_index_cannot_leave_the_store(tmp_path: Path) -> None:
    store = FeatureStore(str(tmp_path / "store"), tmp_path / "work", GIB)
    with pytest.raises(ArtifactError, match="is not a SHA-256"):
        store.size("../../etc/passwd")


def test_an_unknown_protocol_and_a_missing_url(tmp_path: Path) -> None:
    with pytest.raises(DraftyardError, match=r"nosuch://x: the feature store failed \(ValueError: Protocol not known: nosuch"):
        FeatureStore("nosuch://x", tmp_path, GIB)
    runtime = load_runtime(ROOT)
    assert find_store(tmp_path, runtime, tmp_path) is None
    with pytest.raises(ParamError, match=r"store\.url: hidden_states.storage is store: name a directory or a URL in runtime.yaml"):
        open_store(tmp_path, runtime, tmp_path)
