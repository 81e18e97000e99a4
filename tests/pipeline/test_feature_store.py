"""hidden_states.storage: store in a real build: DVC sees the index alone, a fresh clone reads the same store, and one lost shard is made again alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftyard.artifacts.feature_store import FeatureStore
from draftyard.artifacts.files import digest_file
from draftyard.artifacts.hidden_states import HiddenStates
from tests.pipeline.conftest import TinyBuild
from tests.pipeline.tiny_repo import commit, run, stages_run, write_params

pytestmark = [pytest.mark.slow, pytest.mark.engine]
OUT = "data/hidden_states"


def recorded(root: Path) -> dict[str, Any]:
    """What dvc.lock says of data/hidden_states: digest, bytes and number of files."""
    (out,) = [out for out in yaml.safe_load((root / "dvc.lock").read_text())["stages"]["hidden_states"]["outs"] if out["path"] == OUT]
    return dict(out)


def objects(store: Path) -> dict[str, Path]:
    """Digest -> file of every shard in the store."""
    return {path.stem: path for path in (store / "objects").rglob("*.safetensors")}


def use_store(root: Path, store: Path, **hidden_states: Any) -> None:
    """Params and runtime of a build with the store. shard_mib: 1 gives the tiny build several shards."""
    write_params(root, hidden_states={"storage": "store", "shard_mib": 1, **hidden_states})
    runtime = yaml.safe_load((root / "runtime.yaml").read_text())
    runtime["store"]["url"] = str(store)
    (root / "runtime.yaml").write_text(yaml.safe_dump(runtime, sort_keys=False))


def test_a_build_with_a_feature_store(tiny_build: TinyBuild, tmp_path: Path) -> None:
    root, store = shutil.copytree(tiny_build.root, tmp_path / "copy", symlinks=True), tmp_path / "store"
    in_outs = recorded(root)
    use_store(root, store)

    # --- DVC holds the index, the store the shards, and the states are those of the build without a store
    assert stages_run(run(root, "dvc", "repro", "train").stdout) == ["hidden_states", "train"]
    out = recorded(root)
    assert sorted(path.name for path in (root / OUT).iterdir()) == ["index.json", "lineage.json"]
    assert out["nfiles"] == 2
    features = sum(path.stat().st_size for path in objects(store).values())
    assert features > 0.98 * in_outs["size"] > 50 * out["size"]
    index = json.loads((root / OUT / "index.json").read_text())
    entries = [entry for split in index["splits"].values() for entry in split]
    assert len(entries) >= 3
    assert {entry["sha256"] for entry in entries} == set(objects(store))
    assert all(digest_file(path) == digest for digest, path in objects(store).items())
    before, after = HiddenStates(tiny_build.root / OUT), HiddenStates(root / OUT, FeatureStore(str(store), tmp_path / "work", 1))
    for split in ("train", "holdout"):
        for ref, stored in zip(before.refs(split), after.refs(split), strict=True):
            assert (ref.id, ref.length) == (stored.id, stored.length)
            assert (before.load(ref).last - after.load(stored).last).abs().max() < 1e-3
    assert run(root, "draftyard", "store", "--verify").stdout.splitlines()[-1] == "all of them are there"

    # --- push carries the index, not the shards; a fresh clone with the same store has nothing to do
    remote = tmp_path / "remote"
    run(root, "dvc", "remote", "add", "-q", "-d", "origin", str(remote))
    run(root, "dvc", "push", "data/hidden_states", "train")
    assert sum(path.stat().st_size for path in remote.rglob("*") if path.is_file()) < features
    commit(root, "built with a store")
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", str(root), str(clone))
    run(clone, "dvc", "pull", "data/hidden_states")
    assert digest_file(clone / OUT / "index.json") == digest_file(root / OUT / "index.json")
    assert json.loads(run(clone, "draftyard", "store", "--json").stdout)["shards"] == [
        {"file": entry["file"], "sha256": entry["sha256"], "bytes": entry["bytes"], "state": "present"} for entry in entries
    ]
    copied = HiddenStates(clone / OUT, FeatureStore(str(store), tmp_path / "work", 1))
    assert copied.load(copied.refs("train")[-1]).aux.shape[1] == 3 * copied.hidden_size

    # --- one shard is lost: DVC cannot know; the command says what to run, and that makes one shard
    lost, times = entries[1]["sha256"], {digest: path.stat().st_mtime_ns for digest, path in objects(store).items()}
    objects(store)[lost].unlink()
    assert run(root, "dvc", "repro", "--dry", "train").stdout.count("Running stage") == 0
    told = run(root, "draftyard", "store", check=False)
    assert told.returncode == 1
    assert f"missing: {entries[1]['file']}" in told.stdout
    remedy = "dvc repro --force --single-item hidden_states"
    assert f"{remedy}; then dvc repro" in told.stdout
    said = run(root, *remedy.split())
    assert stages_run(said.stdout) == ["hidden_states"]
    kept = {digest: path.stat().st_mtime_ns for digest, path in objects(store).items()}
    assert {digest for digest in kept if kept[digest] != times[digest]} == {lost}  # the same bytes under the same digest, and only they are new
    assert recorded(root) == out
    assert "Running stage" not in run(root, "dvc", "repro", "train").stdout
