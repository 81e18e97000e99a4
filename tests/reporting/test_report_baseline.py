"""Comparing with an earlier build: a commit or a metrics file, what exceeds the spread, and what is said about it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.errors import ArtifactError
from draftyard.reporting.baseline import load_baseline
from draftyard.reporting.build import write_report
from draftyard.reporting.inputs import COMPARISON, MARKDOWN, METRICS
from tests.reporting.conftest import add_samples, params, write_all

Edit = Callable[[str, Callable[[Any], Any]], None]
SERVING, VOCAB = "reports/verify/serving.json", "reports/stages/vocab.json"


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def earlier(root: Path, edit: Edit) -> str:
    """The commit of the recorded build, with per-prompt counts, in a repository of its own."""
    edit(SERVING, add_samples)
    write_all(root)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "An earlier build")
    return git(root, "rev-parse", "HEAD")


def more_accepted(values: Any) -> None:
    """Every prompt accepts one more first token: small, and the same everywhere."""
    for sample in values["samples"]:
        sample["accepted"][0] += 1
    for measure, prompts in [(values["overall"], 40), *((one, one["prompts"]) for one in values["categories"].values())]:
        measure["accepted"][0] += prompts
        measure["acceptance_length"] = 1 + sum(measure["accepted"]) / measure["rounds"]


def figures(root: Path, baseline: str | None) -> dict[str, dict[str, Any]]:
    write_report(root, params(baseline=baseline))
    return {figure["key"]: figure for figure in json.loads((root / COMPARISON).read_text())["figures"]}


def test_without_a_baseline_nothing_is_compared(root: Path) -> None:
    assert figures(root, None) == {}
    page = write_all(root)
    assert "Against" not in page
    assert "Baseline" not in (root / MARKDOWN).read_text()


def test_an_unchanged_build_has_no_change(root: Path, earlier: str) -> None:
    found = figures(root, earlier)
    assert {figure["beyond_spread"] for figure in found.values() if figure["change"] is not None and figure["spread"] is not None} == {False}
    assert {figure["change"] for figure in found.values()} <= {0, None}
    assert f"Against commit {earlier[:12]}, 0 of {len(found)} figures changed by more than the spread." in (root / MARKDOWN).read_text()


def test_a_commit_is_compared_prompt_by_prompt_and_a_file_is_not(root: Path, edit: Edit, earlier: str) -> None:
    """40 more accepted tokens in 2611 rounds: far within what other prompts would give, but no prompt disagrees."""
    (root / "data/baselines").mkdir()
    shutil.copy(root / METRICS, root / "data/baselines/earlier.json")
    edit(SERVING, more_accepted)
    key = "acceptance_length.served"
    paired, alone = figures(root, earlier)[key], figures(root, "data/baselines/earlier.json")[key]
    assert paired["change"] == alone["change"] == pytest.approx(40 / 2611)
    assert (paired["how"], alone["how"]) == ("prompts", "builds")
    assert paired["beyond_spread"] is True
    assert paired["spread"] < 40 / 2611 < alone["spread"]
    own = json.loads((root / METRICS).read_text())["spread"]["acceptance_length"]["served"]
    before = json.loads((root / "data/baselines/earlier.json").read_text())["spread"]["acceptance_length"]["served"]
    assert alone["spread"] == pytest.approx((own**2 + before**2) ** 0.5)


def test_other_prompts_are_not_paired(root: Path, edit: Edit, earlier: str) -> None:
    edit(SERVING, lambda values: values["samples"][0].update(id="another"))
    assert figures(root, earlier)["acceptance_length.served"]["how"] == "builds"


def test_a_counted_figure_changes_by_changing(root: Path, edit: Edit, earlier: str) -> None:
    edit(VOCAB, lambda values: values.update(coverage_holdout=0.9703))
    figure = figures(root, earlier)["coverage.holdout"]
    assert (figure["how"], figure["spread"], figure["beyond_spread"]) == ("exact", None, True)
    text = write_all(root, params(baseline=earlier))
    assert "1 better" in text
    assert "+0.0 points better" in text  # its tile


def test_the_page_and_the_markdown_say_what_was_compared_with(root: Path, edit: Edit, earlier: str) -> None:
    edit("reports/verify/static.json", lambda values: values["parameters"].update(saved=1))
    page = write_all(root, params(baseline=earlier))
    markdown = (root / MARKDOWN).read_text()
    for text in (page, markdown):
        assert earlier in text
        assert "An earlier build" in text
        assert "parameters saved" in text
        assert "−39,557,375" in text
    assert page.index("<h2>The gate") < page.index(f"Against commit {earlier[:12]}") < page.index("<h2>What the verdict rests on")
    assert "delta badge" in page


def test_a_figure_that_one_build_lacks_is_shown_without_a_judgement(root: Path, earlier: str) -> None:
    (root / SERVING).write_text(json.dumps({"status": "skipped", "reason": "no GPU"}))
    figure = figures(root, earlier)["acceptance_length.served"]
    assert (figure["before"] > 1, figure["now"], figure["change"], figure["beyond_spread"]) == (True, None, None, None)


def test_an_older_metrics_file_without_spreads_is_taken_to_have_this_build_s(root: Path, earlier: str) -> None:
    values = json.loads((root / METRICS).read_text())
    own = values.pop("spread")["acceptance_length"]["served"]
    (root / "data/baselines").mkdir()
    (root / "data/baselines/old.json").write_text(json.dumps(values))
    assert figures(root, "data/baselines/old.json")["acceptance_length.served"]["spread"] == pytest.approx(own * 2**0.5)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not valid JSON"), ("[1]", "holds a list, expected an object"), (None, "no such file; copy the reports/metrics.json")]
)
def test_what_is_no_metrics_file_is_said(root: Path, content: str | None, message: str) -> None:
    (root / "data/baselines").mkdir()
    if content is not None:
        (root / "data/baselines/x.json").write_text(content)
    with pytest.raises(ArtifactError, match=f"x.json.*{message}"):
        load_baseline(root, "data/baselines/x.json")


def test_a_commit_that_is_not_here_and_one_without_a_build_are_said(root: Path, earlier: str) -> None:
    with pytest.raises(ArtifactError, match="has no such commit; git fetch it"):
        load_baseline(root, "0" * 40)
    git(root, "rm", "-q", "--cached", METRICS)
    git(root, "commit", "-qm", "no build")
    with pytest.raises(ArtifactError, match=r"holds no reports/metrics.json"):
        load_baseline(root, git(root, "rev-parse", "HEAD"))
