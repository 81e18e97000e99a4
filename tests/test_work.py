"""The resume area: its key, its lock, what a killed run leaves, what is made once, and what is published."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftyard import work
from draftyard.artifacts.files import digest_directory, read_json, write_json
from draftyard.artifacts.lineage import write_lineage
from draftyard.errors import DraftyardError
from draftyard.work import KEY_FILE, WorkArea, areas, lock_area, read_finished, remove_area, stored, sweep

MATERIAL: dict[str, Any] = {"params": {"epochs": 3, "ids": (1, 2)}, "inputs": {"prompts": "aa"}, "packages": {"torch": "2.13"}}
CODE = {"training/loop.py": "0" * 64}


def area(base: Path, material: dict[str, Any] = MATERIAL, code: dict[str, str] = CODE, stage: str = "train") -> WorkArea:
    return WorkArea(base, stage, material, code)


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
        area(tmp_path, code={**CODE, "training/forward.py": "0" * 64}),
        area(tmp_path, code={"training/loop.py": "1" * 64}),
        area(tmp_path, stage="verify"),
    ]
    keys = [key, *(other.key for other in others)]
    assert len(set(keys)) == len(keys)
    monkeypatch.setattr(work, "__version__", "other")
    assert area(tmp_path).key not in keys


def test_two_stages_never_share_a_directory(tmp_path: Path) -> None:
    assert area(tmp_path, stage="train").path.parent != area(tmp_path, stage="verify").path.parent


def test_entering_makes_the_directory_and_says_what_it_is_for(tmp_path: Path) -> None:
    with area(tmp_path) as entered:
        described = read_json(entered.path / KEY_FILE)
    assert described["material"]["inputs"] == {"prompts": "aa"}
    assert described["code"] == CODE
    assert described["stage"] == "train"


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
with WorkArea(Path(sys.argv[1]), "train", {"a": 1}, {}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_another_process_is_seen_and_goes_when_it_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(work.__file__).parents[1])}
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(DraftyardError, match="another process"), WorkArea(tmp_path, "train", {"a": 1}, {}):
            pass
    finally:
        child.kill()
        child.communicate()
    with WorkArea(tmp_path, "train", {"a": 1}, {}):
        pass


def test_the_lock_is_that_of_the_file_that_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that opened the lock file just before `remove_area` removed it must not go on with a lock that nobody else can see."""
    flock = fcntl.flock
    removed: list[bool] = []
    entered_path = area(tmp_path).path

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(True)
            entered_path.with_name(f"{entered_path.name}.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with area(tmp_path) as entered:
        assert removed
        assert entered._lock is not None
        assert os.fstat(entered._lock).st_ino == entered.path.with_name(f"{entered.path.name}.lock").stat().st_ino


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


def test_once_makes_a_damaged_result_again(tmp_path: Path) -> None:
    with area(tmp_path) as first:
        assert first.once("result.json", lambda: {"length": 1.5}) == {"length": 1.5}
        path = first.path / "result.json"
        whole = path.read_bytes()
        assert first.has("result.json")
        assert not first.has("other.json")
        for damaged in (whole.replace(b"1.5", b"1.7"), whole[:-9], b"[]", b""):
            path.write_bytes(damaged)
            assert not first.has("result.json")
            assert first.once("result.json", lambda: {"length": 2.5}) == {"length": 2.5}


# --- finished results


OUT, METRICS = "data/states", "reports/states.json"


def finish(base: Path, root: Path, content: str = "shard", **changes: Any) -> WorkArea:
    """An area that has finished one artifact and one metrics file."""
    with area(base, {**MATERIAL, **changes}) as entered:
        built = entered.new_out(OUT)
        built.mkdir()
        (built / "train-00000").write_text(content)
        write_lineage(built, "hidden_states", inputs={}, params={}, packages={})
        write_json(entered.new_out(METRICS), {"tokens": len(content)})
        entered.finish(root, (OUT, METRICS))
    return entered


def test_a_finished_result_is_published_without_a_second_copy(tmp_path: Path) -> None:
    made = finish(tmp_path / "work", tmp_path / "repository")
    shard = tmp_path / "repository" / OUT / "train-00000"
    assert shard.read_text() == "shard"
    assert shard.samefile(made.outs / OUT / "train-00000")
    assert read_json(tmp_path / "repository" / METRICS) == {"tokens": 5}
    assert not (tmp_path / "repository" / METRICS).samefile(made.outs / METRICS)  # kept in git: an editor may write into it
    assert sorted(path.name for path in (tmp_path / "repository/data").iterdir()) == ["states"]


def test_what_dvc_deleted_before_it_was_stored_is_published_again(tmp_path: Path) -> None:
    """The gap between a stage's end and the end of DVC's book-keeping."""
    root = tmp_path / "repository"
    finish(tmp_path / "work", root)
    before = digest_directory(root / OUT, exclude=())
    subprocess.run(["rm", "-r", str(root)], check=True)
    with area(tmp_path / "work") as again:
        assert again.publish_finished(root)
    assert digest_directory(root / OUT, exclude=()) == before
    assert (root / METRICS).exists()


@pytest.mark.parametrize("damage", ["shard", "lineage", "metrics", "missing", "record"])
def test_a_finished_result_that_is_damaged_is_not_published(damage: str, tmp_path: Path) -> None:
    made = finish(tmp_path / "work", tmp_path / "first")
    paths = {"shard": OUT + "/train-00000", "lineage": OUT + "/lineage.json", "metrics": METRICS, "missing": OUT + "/train-00000", "record": "../finished.json"}
    path = made.outs / paths[damage]
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with area(tmp_path / "work") as again:
        assert not again.publish_finished(tmp_path / "second")
        assert not again.publish_finished(tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_an_unfinished_area_publishes_nothing(tmp_path: Path) -> None:
    with area(tmp_path / "work") as entered:
        entered.new_out(OUT).mkdir()
        assert not entered.publish_finished(tmp_path / "repository")
    made = finish(tmp_path / "work", tmp_path / "repository")
    with area(tmp_path / "work") as again:
        again.new_out(OUT)  # the result is being made anew
    assert read_finished(made.path) is None


def test_an_area_of_a_repository_that_dvc_knows_nothing_of_stays(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    made = finish(tmp_path / "work", root)
    assert not stored(made.path, root)
    sweep(tmp_path / "work", root)
    assert list(areas(tmp_path / "work")) == [made.path]


def test_removing_leaves_nothing_behind_and_spares_what_is_locked(tmp_path: Path) -> None:
    made = finish(tmp_path / "work", tmp_path / "repository")
    lock = lock_area(made.path)
    assert lock is not None
    assert not remove_area(made.path)
    os.close(lock)
    assert remove_area(made.path)
    assert list((tmp_path / "work/train").iterdir()) == []
    assert (tmp_path / "repository" / OUT / "train-00000").read_text() == "shard"


def test_a_removal_that_is_killed_leaves_an_area_that_is_listed_and_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finish(tmp_path / "work", tmp_path / "repository")

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(work.shutil, "rmtree", killed)
        remove_area(made.path)
    assert list(areas(tmp_path / "work")) == [made.path]
    assert read_finished(made.path) is None
    assert remove_area(made.path)
