"""The stage as DVC runs it: its files, its report, and the same bytes every time."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import digest_directory
from draftyard.artifacts.prompts import read_prompts_lineage, read_split
from draftyard.errors import ArtifactError, ParamError
from draftyard.prompts.report import OUTCOMES
from draftyard.runtime import load_runtime
from draftyard.stage import StageContext
from stages import prompts as stage

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS: dict[str, Any] = {
    "sources": [{"kind": "embedded", "path": "data/sources/embedded"}, {"kind": "jsonl", "path": "data/sources/mine.jsonl"}],
    "max_prompts": 300,
    "category_weights": {},
    "holdout_prompts": 45,
    "near_duplicate_threshold": 0.5,
    "max_reject_fraction": 0.3,
    "seed": 0,
}
RUNTIME = load_runtime(ROOT)


def copy_graph(root: Path) -> None:
    """What says which code the stage depends on."""
    shutil.copy(ROOT / "dvc.yaml", root)
    (root / "stages").mkdir()
    shutil.copy(ROOT / "stages/prompts.py", root / "stages")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data/sources/embedded").mkdir(parents=True)
    copy_graph(tmp_path)
    for name in ("chat", "maths", "translation"):
        shutil.copy(ROOT / f"data/sources/embedded/{name}.jsonl", tmp_path / "data/sources/embedded")
    first = json.loads((tmp_path / "data/sources/embedded/chat.jsonl").read_text(encoding="utf-8").splitlines()[0])
    rows = [{"prompt": f"Prove that {i} squared is not prime, in the style of {name}."} for i, name in enumerate(["Euler", "Gauss", "Noether"], 2)]
    lines = [json.dumps(row) for row in [*rows, {"prompt": first["turns"][0].upper()}]] + ["{broken"]
    (tmp_path / "data/sources/mine.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(root: Path, **changes: Any) -> dict[str, Any]:
    stage.main(StageContext("prompts", root, {"prompts": DEFAULTS | changes}, RUNTIME, root / ".work"))
    return json.loads((root / "reports/stages/prompts.json").read_text())


def test_everything_read_is_accounted_for(root: Path) -> None:
    report = run(root)
    tables = [report["total"], *report["categories"].values()]
    for source in report["sources"].values():
        tables += [source["total"], *source["categories"].values()]
    for table in tables:
        assert table["read"] == sum(table[outcome] for outcome in OUTCOMES)
    assert report["total"] == {key: sum(source["total"][key] for source in report["sources"].values()) for key in report["total"]}
    assert report["total"] == {key: sum(category[key] for category in report["categories"].values()) for key in report["total"]}
    mine = report["sources"]["data/sources/mine.jsonl"]["categories"]["mine"]
    assert (mine["read"], mine["rejected"], mine["duplicates"]) == (5, 1, 1)
    assert report["examples"] == {
        "data/sources/mine.jsonl": {"data/sources/mine.jsonl:5": "is not JSON (Expecting property name enclosed in double quotes, column 2)"}
    }


def test_files_agree_with_the_report(root: Path) -> None:
    report = run(root)
    splits = {split: read_split(root / "data/prompts", split) for split in ("train", "holdout")}
    assert len(splits["holdout"]) == 45
    assert len(splits["train"]) + 45 == 300
    assert len({prompt.id for split in splits.values() for prompt in split}) == 300
    for split, prompts in splits.items():
        assert Counter(prompt.category for prompt in prompts) == {name: table[split] for name, table in report["categories"].items() if table[split]}
    assert sorted(path.name for path in (root / "data/prompts").iterdir()) == ["holdout.jsonl", "lineage.json", "train.jsonl"]


def test_lineage_names_what_shapes_the_bytes(root: Path) -> None:
    run(root)
    lineage = read_prompts_lineage(root / "data/prompts")
    assert lineage.digest == digest_directory(root / "data/prompts")
    assert set(lineage.inputs) >= {"data/sources/embedded/chat.jsonl", "data/sources/mine.jsonl"}
    assert lineage.params["seed"] == 0
    assert lineage.facts == {"train": 255, "holdout": 45}
    assert str(root) not in (root / "data/prompts/lineage.json").read_text()


def test_same_bytes_again_and_elsewhere(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    run(root)
    before = {path.name: path.read_bytes() for path in (root / "data/prompts").iterdir()}
    (root / "data/prompts/stale.jsonl").write_text("left over")
    run(root, max_reject_fraction=0.9)  # decides about failure only
    assert {path.name: path.read_bytes() for path in (root / "data/prompts").iterdir()} == before
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(root / "data/sources", elsewhere / "data/sources")
    copy_graph(elsewhere)
    run(elsewhere)
    assert {path.name: path.read_bytes() for path in (elsewhere / "data/prompts").iterdir()} == before
    assert not [path for path in (root / ".work").rglob(".*") if path.is_file()]  # the spool is gone, the results wait for DVC


def test_a_failed_run_leaves_the_earlier_output(root: Path) -> None:
    run(root)
    before = digest_directory(root / "data/prompts", exclude=())
    with pytest.raises(ArtifactError, match=r"mine\.jsonl:5: is not JSON"):
        run(root, max_reject_fraction=0.1)
    assert digest_directory(root / "data/prompts", exclude=()) == before
    run(root)


def test_params_are_checked_first(root: Path) -> None:
    with pytest.raises(ParamError, match=r"prompts\.holdout_prompts=300: must be smaller than prompts\.max_prompts=300"):
        run(root, holdout_prompts=300)
    with pytest.raises(ParamError, match=r"prompts\.salt=1: unknown key"):
        run(root, salt=1)
