"""data/prompts/: what is written is read back; a broken file is named with its line."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.lines import Line, bounded_lines, parse_line
from draftyard.artifacts.prompts import (
    Prompt,
    prompt_from_row,
    prompt_to_row,
    read_prompts,
    read_prompts_lineage,
    read_split,
    write_prompts,
    write_prompts_lineage,
)
from draftyard.errors import ArtifactError

PLAIN = Prompt(id="a", category="chat", system=None, turns=("Hello?",))
FULL = Prompt(id="b", category="code", system="Be brief.", turns=("Écris « oui ».\n\tNow.", "再来一次\u2028!"))


def test_rows_have_exactly_the_documented_keys(tmp_path: Path) -> None:
    assert write_prompts(tmp_path / "train.jsonl", [PLAIN, FULL]) == 2
    lines = (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=False)
    first = json.loads((tmp_path / "train.jsonl").read_bytes().split(b"\n")[0])
    assert first == {"id": "a", "category": "chat", "turns": ["Hello?"]}
    assert "再来一次" in "".join(lines), "text is stored as it reads, not escaped"


def test_round_trip_keeps_order_and_text(tmp_path: Path) -> None:
    write_prompts(tmp_path / "holdout.jsonl", [FULL, PLAIN])
    assert read_split(tmp_path, "holdout") == [FULL, PLAIN]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(deadline=None)
@given(st.builds(Prompt, id=texts, category=texts, system=st.none() | texts, turns=st.lists(texts, min_size=1, max_size=3).map(tuple)))
def test_any_prompt_survives_its_row(prompt: Prompt) -> None:
    assert prompt_from_row(json.loads(json.dumps(prompt_to_row(prompt)))) == prompt


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is a list, expected an object"),
        (b'{"id": "", "category": "c", "turns": ["x"]}', "id must be a text that is not empty"),
        (b'{"id": "z", "category": 3, "turns": ["x"]}', "category must be a text"),
        (b'{"id": "z", "category": "c", "system": 1, "turns": ["x"]}', "system must be a text"),
        (b'{"id": "z", "category": "c", "turns": []}', "turns must be a list of at least one text"),
        (b'{"id": "z", "category": "c", "turns": "x"}', "turns must be a list"),
        (b'{"id": "z", "category": "c", "turns": ["x", ""]}', "none empty"),
        (b'{"id": "z", "category": "c", "turns": ["x"], "answer": "y"}', "unknown key 'answer'"),
        (b'{"id": "a", "category": "c", "turns": ["x"]}', "id 'a' is also that of line 1"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "train.jsonl"
    write_prompts(path, [PLAIN])
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n")
    with pytest.raises(ArtifactError) as error:
        list(read_prompts(path))
    assert str(error.value).startswith(f"{path}:3: ")
    assert reason in str(error.value)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"train\.jsonl: no such file; re-run the stage prompts"):
        read_split(tmp_path, "train")
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(ArtifactError, match="holds no prompt"):
        read_split(tmp_path, "train")
    (tmp_path / "holdout.jsonl").mkdir()
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_split(tmp_path, "holdout")


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_prompts(path, [PLAIN])

    def broken():
        yield FULL
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_prompts(path, broken())
    assert read_split(tmp_path, "train") == [PLAIN]
    assert [p.name for p in tmp_path.iterdir()] == ["train.jsonl"]


def test_lineage_is_that_of_prompts(tmp_path: Path) -> None:
    write_prompts(tmp_path / "train.jsonl", [PLAIN])
    written = write_prompts_lineage(tmp_path, inputs={"f": "0"}, params={"seed": 1}, packages={}, facts={"train": 1})
    assert read_prompts_lineage(tmp_path) == written
    (tmp_path / "lineage.json").write_text((tmp_path / "lineage.json").read_text().replace('"prompts"', '"draft"'))
    with pytest.raises(ArtifactError, match="lineage of 'draft', expected 'prompts'"):
        read_prompts_lineage(tmp_path)


def test_lines_are_counted_over_blank_and_over_long_ones() -> None:
    text = b"\xef\xbb\xbf1\n\n  \n" + b"x" * 50 + b"\n22\r\n" + b"y" * 10 + b"\n" + b"z" * 11
    lines = list(bounded_lines(io.BytesIO(text), limit=10))
    assert lines == [Line(1, b"1", 5), Line(4, None, 51), Line(5, b"22", 4), Line(6, b"y" * 10, 11), Line(7, None, 11)]


def test_an_over_long_line_is_never_held() -> None:
    class Endless(io.RawIOBase):
        """A gigabyte without a line break; remembers the largest piece asked for."""

        left, largest = 1 << 30, 0

        def readline(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0
            self.largest = max(self.largest, size)
            piece = min(size, self.left)
            self.left -= piece
            return b"x" * piece

    file = Endless()
    (line,) = bounded_lines(file, limit=1 << 20)  # type: ignore[arg-type]
    assert line == Line(1, None, 1 << 30)
    assert file.largest <= (1 << 20) + 1
    with pytest.raises(ValueError, match="is 1073741824 bytes long, more than"):
        parse_line(line)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": ', "is not JSON"),
        (b"[" * 500_000, "nested too deeply"),
        (b'{"a":' * 500_000, "nested too deeply"),
        (b"9" * 100_000, "a number is too long"),
        (b'"\xc3"', r"is not UTF-8 \(byte 0xc3 at position 1\)"),
    ],
)
def test_hostile_json_gives_a_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_line(Line(1, raw, len(raw)))
