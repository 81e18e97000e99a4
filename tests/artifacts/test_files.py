"""Whole or absent: atomic files, digests, publishing."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.files import (
    atomic_writer,
    canonical_json,
    digest_directory,
    digest_file,
    digest_json,
    link_or_copy,
    publish_directory,
    publish_linked,
    read_json,
    write_json,
)
from draftyard.errors import ArtifactError


def test_canonical_json_is_one_text_for_one_value() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'.encode()
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1}) == hashlib.sha256(b'{"a":1,"b":2}').hexdigest()
    with pytest.raises(ValueError):
        canonical_json(float("nan"))


def test_digest_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert digest_file(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1


def test_a_directorys_digest_covers_names_and_bytes_and_leaves_out_its_lineage(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    (tmp_path / "y").write_text("2")
    first = digest_directory(tmp_path)
    one, two = hashlib.sha256(b"1").hexdigest(), hashlib.sha256(b"2").hexdigest()
    assert first == hashlib.sha256(f'{{"a/x":"{one}","y":"{two}"}}'.encode()).hexdigest()
    (tmp_path / "lineage.json").write_text("{}")
    assert digest_directory(tmp_path) == first
    (tmp_path / "y").rename(tmp_path / "z")
    assert digest_directory(tmp_path) != first
    (tmp_path / "z").rename(tmp_path / "y")
    assert digest_directory(tmp_path) == first
    (tmp_path / "y").write_text("3")
    assert digest_directory(tmp_path) != first


def test_an_atomic_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep/file"
    with atomic_writer(path) as file:
        file.write("é")
        assert not path.exists()
    assert path.read_bytes() == "é".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(error), atomic_writer(path, "wb") as file:
        file.write(b"new")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_sorted_and_ends_in_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": "é", "a": [1]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "a": [\n    1\n  ],\n  "b": "é"\n}\n'
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": float("inf")})
    assert read_json(tmp_path / "a.json") == {"a": [1], "b": "é"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"a\.json: no such file; run the stage that makes it"),
        (b"{", r"a\.json: is not valid JSON"),
        (b'"\xff"', r"a\.json: is not valid JSON"),
        (b"[" * 100_000, r"a\.json: is not valid JSON"),
        (b'"' + b"x" * 2000 + b'"', r"a\.json: 2002 bytes, more than the 1024 expected"),
    ],
)
def test_json_that_cannot_be_read_is_told_with_the_file(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=message):
        read_json(tmp_path / "a.json", max_bytes=1024 if content and len(content) < 3000 else 1 << 30)


def test_a_directory_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_json(tmp_path)


def built(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "sub/file").write_text("new")
    return directory


def test_publishing_replaces_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "data/out"
    out.mkdir(parents=True)
    (out / "stale").write_text("old")
    publish_directory(built(tmp_path / "work/built"), out)
    assert [p.relative_to(out).as_posix() for p in out.rglob("*")] == ["sub", "sub/file"]
    assert not (tmp_path / "work/built").exists()


def test_publishing_to_another_file_system_copies_beside_the_output_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def across(source: Any, target: Any) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    monkeypatch.setattr(os, "replace", across)
    out = tmp_path / "data/out"
    (tmp_path / "data/.out.incoming").mkdir(parents=True)  # left by a copy that was killed
    (tmp_path / "data/.out.incoming/half").write_text("x")
    publish_directory(built(tmp_path / "work/built"), out)
    assert [p.relative_to(tmp_path / "data").as_posix() for p in sorted((tmp_path / "data").rglob("*"))] == ["out", "out/sub", "out/sub/file"]
    assert not (tmp_path / "work/built").exists()


def test_publishing_by_links_keeps_what_was_built(tmp_path: Path) -> None:
    out = tmp_path / "data/out"
    out.mkdir(parents=True)
    (out / "stale").write_text("old")
    (tmp_path / "data/.out.incoming").mkdir()  # left by a run that was killed
    (tmp_path / "data/.out.incoming/half").write_text("x")
    source = built(tmp_path / "work/built")
    publish_linked(source, out)
    assert [p.relative_to(tmp_path / "data").as_posix() for p in sorted((tmp_path / "data").rglob("*"))] == ["out", "out/sub", "out/sub/file"]
    assert (out / "sub/file").samefile(source / "sub/file")
    publish_linked(source / "sub/file", tmp_path / "data/file")
    assert not (tmp_path / "data/file").samefile(source / "sub/file")
    publish_linked(source, out)
    assert (out / "sub/file").read_text() == "new"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_no_link_is_possible_the_file_is_copied(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Any, target: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    (tmp_path / "a").chmod(0o444)
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "x"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o644
    assert not (tmp_path / "b").samefile(tmp_path / "a")


def test_publishing_that_fails_leaves_the_old_output_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Any, target: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    out = tmp_path / "data/out"
    out.mkdir(parents=True)
    (out / "old").write_text("old")
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        publish_linked(built(tmp_path / "work/built"), out)
    assert [p.relative_to(tmp_path / "data").as_posix() for p in sorted((tmp_path / "data").rglob("*"))] == ["out", "out/old"]
