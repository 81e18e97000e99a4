"""`draftyard lineage`: the chain with its digests, and where two links do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from draftyard.artifacts.card import write_card
from draftyard.artifacts.files import digest_file, write_json
from draftyard.artifacts.lineage import write_lineage
from draftyard.cli import main
from draftyard.errors import DraftyardError
from draftyard.lineage_chain import KINDS, chain
from tests.artifacts.test_card import a_card

INPUTS = {
    "generations": ("prompts", "verifier"),
    "hidden_states": ("generations", "verifier"),
    "vocab": ("generations", "verifier"),
    "draft": ("hidden_states", "vocab", "verifier"),
}


def write_artifact(root: Path, kind: str, content: str, inputs: dict[str, str]) -> str:
    directory = root / KINDS[kind].path
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "file").write_text(content)
    return write_lineage(directory, kind, inputs=inputs, params={}, packages={}).digest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one artifact of each kind that fit together."""
    (tmp_path / "data/sources").mkdir(parents=True)
    (tmp_path / "data/sources/mine.jsonl").write_text("{}\n")
    card = a_card()
    write_card(tmp_path / "models/verifier.json", card)
    digests = {"verifier": card.digest}
    digests["prompts"] = write_artifact(tmp_path, "prompts", "p", {"data/sources/mine.jsonl": digest_file(tmp_path / "data/sources/mine.jsonl")})
    for kind, names in INPUTS.items():
        digests[kind] = write_artifact(tmp_path, kind, kind, {name: digests[name] for name in names})
    made_from = {name: digests[name] for name in ("draft", "hidden_states", "verifier")}
    write_json(tmp_path / "reports/verify/static.json", {"status": "pass", "made_from": made_from})
    write_json(tmp_path / "reports/metrics.json", {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_chain_of_a_report_is_everything_in_the_order_of_the_build(root: Path) -> None:
    result = CliRunner().invoke(main, ["lineage", "reports/report.html", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["status"] == "pass"
    assert [link["kind"] for link in told["links"]] == list(KINDS)
    links = {link["kind"]: link for link in told["links"]}
    assert links["draft"]["inputs"] == {name: links[name]["digest"] for name in INPUTS["draft"]}
    assert list(links["prompts"]["inputs"]) == ["data/sources/mine.jsonl"]


@pytest.mark.parametrize("name", ["models/vocab", "models/vocab/", "models/vocab/lineage.json", "vocab"])
def test_the_chain_of_an_artifact_holds_what_it_was_made_from_and_no_more(name: str, root: Path) -> None:
    assert [link.kind for link in chain(root, name)] == ["prompts", "verifier", "generations", "vocab"]


def test_the_text_shows_sources_digests_and_that_all_fit(root: Path) -> None:
    lines = CliRunner().invoke(main, ["lineage", "data/prompts"]).output.splitlines()
    digest = chain(root, "data/prompts")[0].digest
    assert digest is not None
    assert lines[0].split() == ["data/prompts", digest[:12]]
    assert lines[1].split() == ["from", "data/sources/mine.jsonl", digest_file(root / "data/sources/mine.jsonl")[:12]]
    assert lines[-1] == "all 1 fit"


def test_two_links_that_do_not_fit_are_named_with_both_digests_and_the_stage(root: Path) -> None:
    before = {link.kind: link.digest for link in chain(root, "draft")}
    inputs = {"generations": str(before["generations"]), "verifier": str(before["verifier"])}
    now = write_artifact(root, "vocab", "another vocabulary", inputs)
    result = CliRunner().invoke(main, ["lineage", "models/draft"])
    assert result.exit_code == 1
    assert f"  ! was made from vocab {before['vocab']}, but models/vocab is {now}: run dvc repro train" in result.output.splitlines()
    assert result.output.splitlines()[-1] == "1 do not fit"


def test_a_changed_source_of_prompts(root: Path) -> None:
    (root / "data/sources/mine.jsonl").write_text("{}\n{}\n")
    (link,) = chain(root, "data/prompts")
    assert len(link.problems) == 1
    assert "but data/sources/mine.jsonl is" in link.problems[0]
    assert link.problems[0].endswith("run dvc repro prompts")


def test_what_is_not_here_is_told(root: Path) -> None:
    (root / "models/verifier.json").unlink()
    result = CliRunner().invoke(main, ["lineage", "data/generations"])
    assert result.exit_code == 1
    assert "models/verifier.json" in result.output
    assert "not here" in result.output


def test_files_are_read_only_when_asked(root: Path) -> None:
    (root / "data/generations/file").write_text("damaged")
    assert CliRunner().invoke(main, ["lineage", "data/generations"]).exit_code == 0
    result = CliRunner().invoke(main, ["lineage", "data/generations", "--files"])
    assert result.exit_code == 1
    assert "  ! data/generations/file is damaged, DVC's cache has no copy. Mend: rm -rf data/generations; dvc pull data/generations" in result.output


def test_no_such_artifact(root: Path) -> None:
    with pytest.raises(DraftyardError, match="data/nothing: is no artifact of this build; known: data/prompts, models/verifier"):
        chain(root, "data/nothing")
