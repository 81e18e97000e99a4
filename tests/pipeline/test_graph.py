"""dvc.yaml against the code: each stage declares the modules it imports, all of them and no others, and nothing is forced or frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pipeline.import_graph import imported_modules, local_files

ROOT = Path(__file__).parents[2]
STAGES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
ORDER = ["verifier", "prompts", "generate", "hidden_states", "vocab", "train", "verify", "report", "gate"]


def entries(stage: str, field: str) -> dict[str, dict[str, Any]]:
    """path -> options of a stage's outs, metrics or plots, both spellings."""
    listed = STAGES[stage].get(field, [])
    return {path: options or {} for entry in listed for path, options in (entry.items() if isinstance(entry, dict) else [(entry, {})])}


def is_code(dep: str) -> bool:
    return dep.endswith(".py")


def test_the_stages_are_the_designs() -> None:
    assert list(STAGES) == ORDER
    assert {path.stem for path in (ROOT / "stages").glob("*.py")} == set(ORDER)


@pytest.mark.parametrize("stage", ORDER)
def test_code_deps_are_the_imports(stage: str) -> None:
    script = f"stages/{stage}.py"
    assert STAGES[stage]["cmd"] == f"python {script}"
    declared = {dep for dep in STAGES[stage]["deps"] if is_code(dep)}
    imported = set(local_files(ROOT, ROOT / script))
    assert script in imported
    missing, superfluous = sorted(imported - declared), sorted(declared - imported)
    assert not missing, f"dvc.yaml, stage {stage}: deps lack {missing}, which {script} imports"
    assert not superfluous, f"dvc.yaml, stage {stage}: deps list {superfluous}, which {script} does not import"
    assert len(STAGES[stage]["deps"]) == len(set(STAGES[stage]["deps"]))


def test_a_stage_is_no_library() -> None:
    """What a stage script holds belongs to it alone."""
    assert not [stage for stage in ORDER for other in ORDER if other != stage and f"stages/{other}.py" in STAGES[stage]["deps"]]


@pytest.mark.parametrize("stage", ORDER)
def test_data_deps_are_made_by_a_stage(stage: str) -> None:
    """Each dep that is no code is an output of another stage (or lies in one), or what users bring: prompts, references, baselines."""
    made = {path for other in ORDER if other != stage for field in ("outs", "metrics", "plots") for path in entries(other, field)}
    for dep in STAGES[stage]["deps"]:
        if not is_code(dep) and dep not in ("data/sources", "data/references", "data/baselines"):
            assert any(Path(dep).is_relative_to(path) for path in made), f"dvc.yaml, stage {stage}: no stage makes {dep}"


@pytest.mark.parametrize("stage", ORDER)
def test_each_stage_is_described_and_neither_frozen_nor_forced(stage: str) -> None:
    assert len(STAGES[stage].get("desc", "")) > 10
    known = {"desc", "cmd", "deps", "params", "outs", "metrics", "plots"}  # without frozen, always_changed
    assert set(STAGES[stage]) <= known
    for field in ("metrics", "plots"):
        for path, options in entries(stage, field).items():
            assert options.get("cache") is False, f"{path}: {field} stay in git"
    for field in ("outs", "metrics", "plots"):
        for path, options in entries(stage, field).items():
            assert "persist" not in options, path


def test_the_walk_finds_what_is_imported_inside_functions(tmp_path: Path) -> None:
    """The walk itself, on a small tree."""
    package = tmp_path / "src/draftyard"
    (package / "sub").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "a.py": "def f():\n    from draftyard.sub import b\n",
        "sub/__init__.py": "",
        "sub/b.py": "import draftyard.sub.c as c\n",
        "sub/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from draftyard import unused\n",
        "unused.py": "",
    }.items():
        (package / name).write_text(text)
    script = tmp_path / "stage.py"
    script.write_text("import os\nfrom draftyard.a import f\n")
    assert imported_modules(script) == {"draftyard.a", "draftyard.a.f"}
    names = ("__init__", "a", "sub/__init__", "sub/b", "sub/c")
    assert local_files(tmp_path, script) == sorted([*(f"src/draftyard/{name}.py" for name in names), "stage.py"])
