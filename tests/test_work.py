"""The resume area: its key, its lock, what a killed run leaves, and what is made once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftyard import work
from draftyard.artifacts.files import atomic_writer, read_json
from draftyard.errors import DraftyardError
from draftyard.work import KEY_FILE, WorkArea

MATERIAL: dict[str, Any] = {"params": {"epochs": 3, "ids": (1, 2)}, "inputs": {"prompts": "aa"}, "packages": {"torch": "2.13"}}
MODULES = ("work.py",)


def area(base: Path, material: dict[str, Any] = MATERIAL, modules: tuple[str, ...] = MODULES, stage: str = "train") -> WorkArea:
    return WorkArea(base, stage, material, modules)


def test_the_key_is_the_same_for_the_same_and_differs_when_anything_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = area(tmp_path).key
    assert area(tmp_path).key == key
    assert area(tmp_path, {**MATERIAL, "params": {"ids": [1, 2], "epochs": 3}}).key == key  # order of keys, tuple or list: the same JSON
    others = [
        area(tmp_path, {**MATERIAL, "params": {"epochs": 4, "ids": (1, 2)}}),
        area(tmp_path, {**MATERIAL, "params": {"epochs": 3, "ids": (2, 1)}}),
        area(tmp_path, {**MATERIAL, "inputs": {"prompts": "ab"}}),
        area(tmp_path, {**MATERIAL, "packages": {"torch": "2.14"}}),
        area(tmp_path, {**MATERIAL, "more": None}),
        area(tmp_path, modules=("work.py", "stage.py")),
        area(tmp_path, modules=()),
    ]
    keys = [key, *(other.key for other in others)]
    assert len(set(keys)) == len(keys)
    monkeypatch.setattr(work, "__version__", "other")
    assert area(tmp_path).key not in keys


def test_the_key_follows_the_source_text_of_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "module.py").write_text("a = 1\n")
    monkeypatch.setattr(work, "PACKAGE_DIR", package)
    first = area(tmp_path, modules=("module.py",)).key
    (package / "module.py").write_text("a = 2\n")
    assert area(tmp_path, modules=("module.py",)).key != first


def test_two_stages_never_share_a_directory(tmp_path: Path) -> None:
    assert area(tmp_path, stage="train").path.parent != area(tmp_path, stage="verify").path.parent


def test_entering_makes_the_directory_and_says_what_it_is_for(tmp_path: Path) -> None:
    with area(tmp_path) as entered:
        described = read_json(entered.path / KEY_FILE)
    assert described["material"]["inputs"] == {"prompts": "aa"}
    assert set(described["code"]) == {"work.py"}


def test_a_second_holder_is_refused_and_the_lock_goes_with_the_first(tmp_path: Path) -> None:
    with area(tmp_path) as first:
        with pytest.raises(DraftyardError, match="another process is building this"), area(tmp_path):
            pass
        with area(tmp_path, {**MATERIAL, "more": 1}):
            pass  # another key is another lock
    with area(tmp_path) as again:
        assert again.path == first.path


HOLDER = """
import sys
from pathlib import Path
from draftyard.work import WorkArea
with WorkArea(Path(sys.argv[1]), "train", {"a": 1}, ()):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_another_process_is_seen_and_goes_when_it_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(work.__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(DraftyardError, match="another process"), WorkArea(tmp_path, "train", {"a": 1}, ()):
            pass
    finally:
        child.kill()
        child.communicate()
    with WorkArea(tmp_path, "train", {"a": 1}, ()):
        pass


def test_the_lock_is_that_of_the_file_that_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opened the lock file just before `discard` removed it must not go on with a lock that nobody else can see."""
    flock = fcntl.flock
    removed: list[bool] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(True)
            area(tmp_path)._lock_path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with area(tmp_path) as entered:
        assert removed
        assert entered._lock is not None
        assert os.fstat(entered._lock).st_ino == entered._lock_path.stat().st_ino


def test_what_a_killed_write_left_is_removed_at_any_depth(tmp_path: Path) -> None:
    with area(tmp_path) as first:
        (first.path / "built/skipped").mkdir(parents=True)
        for name in (".half.json.x1", "built/.train-00000.jsonl.x2", "built/skipped/.y.tmp", "built/train-00000.jsonl"):
            (first.path / name).write_text("x")
    with area(tmp_path) as second:
        left = {path.relative_to(second.path).as_posix() for path in second.path.rglob("*") if path.is_file()}
    assert left == {KEY_FILE, "built/train-00000.jsonl"}


def test_once_makes_a_result_once_and_reads_it_back(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"b": [1, 2.5], "a": None}

    with area(tmp_path) as first:
        assert first.once("result.json", make) == {"a": None, "b": [1, 2.5]}
    with area(tmp_path) as second:
        assert second.once("result.json", make) == {"a": None, "b": [1, 2.5]}
    assert made == [1]


def test_once_keeps_nothing_of_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with area(tmp_path) as first:
        with pytest.raises(KeyboardInterrupt):
            first.once("result.json", fail)
        assert first.once("result.json", lambda: 1) == 1


def test_discard_leaves_nothing_behind(tmp_path: Path) -> None:
    with area(tmp_path) as entered:
        (entered.path / "built").mkdir()
        with atomic_writer(entered.path / "built/shard") as file:
            file.write("x")
        entered.discard()
    assert list((tmp_path / "train").iterdir()) == []
    with area(tmp_path) as again:
        assert not (again.path / "built").exists()
