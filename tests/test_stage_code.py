"""The code part of the resume key: every module that a stage imports, but for a list of those that cannot change a byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftyard.artifacts.files import digest_file
from draftyard.errors import DraftyardError
from draftyard.stage_code import PACKAGE_DIR, PLUMBING, stage_code
from tests.pipeline.import_graph import local_files

ROOT = Path(__file__).parents[1]
RESUMING = ("prompts", "generate", "hidden_states", "train", "verify")


@pytest.mark.parametrize("stage", RESUMING)
def test_the_key_covers_what_the_stage_imports(stage: str) -> None:
    """Against the import graph itself: a module that nobody thought of is part of the key."""
    imported = {path.removeprefix("src/draftyard/") for path in local_files(ROOT, ROOT / f"stages/{stage}.py")}
    code = stage_code(ROOT, stage)
    assert set(code) == imported - PLUMBING
    assert f"stages/{stage}.py" in code
    assert code["artifacts/files.py"] == digest_file(PACKAGE_DIR / "artifacts/files.py")


def test_plumbing_is_there() -> None:
    assert not [name for name in PLUMBING if not (PACKAGE_DIR / name).is_file()]


def test_a_change_of_the_script_is_a_change_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "dvc.yaml").write_text("stages:\n  train:\n    deps: [stages/train.py, data/x, src/draftyard/errors.py]\n  empty: {}\n")
    script = tmp_path / "stages/train.py"
    script.write_text("a = 1\n")
    first = stage_code(tmp_path, "train")
    assert list(first) == ["stages/train.py"]
    script.write_text("a = 2\n")
    assert stage_code(tmp_path, "train") != first
    with pytest.raises(DraftyardError, match=r"dvc\.yaml: has no stage empty with deps"):
        stage_code(tmp_path, "empty")
