"""Opening sources and reading them line by line: each bad line has its place and reason."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftyard.errors import ArtifactError, DraftyardError, ParamError
from draftyard.prompts.sources import Read, open_sources

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(root: Path, name: str, content: bytes | list[Any]) -> Path:
    path = root / "data/sources" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in content))
    return path


def read(root: Path, **source: str) -> list[Read]:
    (opened,) = open_sources(({"kind": "jsonl", **source},), root)
    return list(opened.read())


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    good = b'{"prompt": "hi"}\n'
    put(
        tmp_path,
        "mine.jsonl",
        good
        + b"\n"
        + b"{oops}\n"
        + b'{"prompt": "\xff"}\n'
        + b"[" * 100_000
        + b"\n"
        + b'{"prompt": "'
        + b"x" * (5 << 20)
        + b'"}\n'
        + b'{"prompt": "\\ud800"}\n'
        + good,
    )
    result = read(tmp_path, path="data/sources/mine.jsonl")
    places = ["data/sources/mine.jsonl:" + str(n) for n in (1, 3, 4, 5, 6, 7, 8)]
    assert [line.place for line in result] == places
    assert [line.row is not None for line in result] == [True, False, False, False, False, False, True]
    reasons = [line.reason or "" for line in result]
    for reason, expected in zip(reasons, ["", "is not JSON", "is not UTF-8", "nested too deeply", "bytes long", "half a surrogate pair", ""], strict=True):
        assert expected in reason


@pytest.mark.parametrize(
    ("row", "source", "category"),
    [
        ({"prompt": "x"}, None, "my-file"),
        ({"prompt": "x", "category": "Code"}, None, "code"),
        ({"prompt": "x", "category": "code"}, "Chat", "chat"),
        ({"prompt": "", "category": "code"}, None, "code"),  # a reject is counted where it belongs
        ({"prompt": "", "category": []}, None, "my-file"),
        ({"prompt": ""}, "chat", "chat"),
    ],
)
def test_category_of_the_source_then_the_row_then_the_file(tmp_path: Path, row: dict[str, Any], source: str | None, category: str) -> None:
    put(tmp_path, "my_file.jsonl", [row])
    (result,) = read(tmp_path, path="data/sources/my_file.jsonl", **({"category": source} if source else {}))
    assert result.category == category


def test_a_directory_is_all_its_jsonl_files_by_name(tmp_path: Path) -> None:
    put(tmp_path, "d/b.jsonl", [{"turns": ["b"]}])
    path = put(tmp_path, "d/a.jsonl", [{"turns": ["a"]}])
    put(tmp_path, "d/notes.txt", b"no")
    (source,) = open_sources(({"kind": "embedded", "path": "data/sources/d"},), tmp_path)
    assert [line.row.turns for line in source.read() if line.row] == [("a",), ("b",)]
    assert list(source.inputs()) == ["data/sources/d/a.jsonl", "data/sources/d/b.jsonl"]
    assert source.inputs()["data/sources/d/a.jsonl"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("text", [b"[\n", b'[{"prompt": "x"}]', b'[ {"prompt": "x"},\n'])
def test_a_json_array_is_refused_with_the_remedy(tmp_path: Path, text: bytes) -> None:
    put(tmp_path, "a.jsonl", text)
    with pytest.raises(ArtifactError, match=r"a\.jsonl:1: is one JSON array.*jq -c"):
        read(tmp_path, path="data/sources/a.jsonl")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "data/sources/empty").mkdir(parents=True)
    os.mkfifo(tmp_path / "data/sources/pipe")
    (tmp_path / "outside.jsonl").write_text("{}")
    (tmp_path / "data/sources/link.jsonl").symlink_to(tmp_path / "outside.jsonl")
    for path, message in [
        ("gone.jsonl", "no such file"),
        ("empty", "holds no .jsonl file"),
        ("pipe", "not a regular file"),
        ("link.jsonl", "leads out of data/sources"),
    ]:
        with pytest.raises(ArtifactError, match=message) as error:
            open_sources(({"kind": "jsonl", "path": f"data/sources/{path}"},), tmp_path)
        assert f"prompts.sources[0].path='data/sources/{path}'" in str(error.value)


def test_a_source_listed_twice(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", [{"prompt": "x"}])
    source = {"kind": "jsonl", "path": "data/sources/a.jsonl"}
    with pytest.raises(ParamError, match="listed twice"):
        open_sources((source, source), tmp_path)


def hub(**values: str) -> dict[str, str]:
    return {"kind": "hf", "name": "org/chats", "revision": COMMIT, **values}


def test_hub_rows_at_the_pinned_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        asked.append((args, kwargs))
        return [{"prompt": "one", "messages": None}, {"prompt": None}, {"messages": [{"role": "user", "content": "two"}]}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (source,) = open_sources((hub(config="en"),), tmp_path)
    lines = list(source.read())
    assert asked == [(("org/chats", "en"), {"split": "train", "revision": COMMIT})]
    assert [line.row and line.row.turns for line in lines] == [("one",), None, ("two",)]
    assert lines[1].place == "org/chats@0123456789ab[train]:2"
    assert {line.category for line in lines} == {"chats"}
    assert source.inputs() == {"org/chats[en,train]": COMMIT}


def test_hub_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach\nthe hub")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (source,) = open_sources((hub(),), tmp_path)
    with pytest.raises(
        DraftyardError, match=r"cannot be loaded \(ConnectionError: Couldn't reach the hub\).*revision.*HF_HOME.*jsonl file below data/sources/"
    ):
        list(source.read())


def test_hub_offline_for_real(tmp_path: Path) -> None:
    """The library itself, told to stay offline, with an empty cache."""
    import subprocess

    code = (
        "from pathlib import Path\nfrom draftyard.prompts.sources import open_sources\n"
        f"(source,) = open_sources(({hub()!r},), Path('.'))\n"
        "try:\n    list(source.read())\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert done.stdout.startswith("DraftyardError source org/chats@0123456789ab[train]: the data set cannot be loaded"), done.stdout + done.stderr


def test_without_the_datasets_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (source,) = open_sources((hub(),), tmp_path)
    with pytest.raises(DraftyardError, match="package datasets, which is not installed; pip install datasets"):
        list(source.read())


def test_a_local_directory_of_the_data_sets_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/chats").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace())
    (source,) = open_sources((hub(),), tmp_path)
    with pytest.raises(DraftyardError, match="also a local directory"):
        list(source.read())
