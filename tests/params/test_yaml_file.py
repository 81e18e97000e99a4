"""YAML as DVC reads it, so that `draftyard plan` and a stage see the same values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.errors import ParamError
from draftyard.params.yaml_file import parse_yaml, read_yaml

SCALARS = [
    *(["yes", "no", "on", "off", "Yes", "Off", "y", "n", "true", "True", "TRUE", "false", "False", "~", "null", "NULL", "Null"]),
    *(["0", "7", "-7", "+1", "0123", "08", "0x1F", "0o17", "0b11", "1_000", "1:30", "190:20:30", "1:30:00.5"]),
    *(["1.5", ".5", "5.", "+.5", "2e-05", "1e5", "1E+2", "12e03", "1.e5", "1.0E+2", "1.5e3", ".inf", "-.Inf", "1e", "e5", "1e+", "1.2.3", "1_0.5"]),
    *(["'2e-05'", "text", "a.b", "2024-01-02", "1.2.3.4", "0x", "0o9", "-a", "+"]),
]


def as_dvc(text: str) -> Any:
    """What the stages will see: DVC's own reader (ruamel.yaml, YAML 1.2)."""
    from dvc.utils.serialize import parse_yaml as dvc_parse

    return dvc_parse(text, "params.yaml")


@pytest.mark.parametrize("scalar", SCALARS)
def test_scalars_are_read_as_dvc_reads_them(scalar: str) -> None:
    ours, theirs = parse_yaml(f"a: {scalar}\n", "file"), as_dvc(f"a: {scalar}\n")
    assert repr(ours) == repr(theirs)  # repr: 1 is not 1.0, and not True


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_that_dvc_writes_comes_back(value: float) -> None:
    assert parse_yaml(f"a: {value!r}\n", "file") == {"a": value}
    assert isinstance(parse_yaml(f"a: {value!r}\n", "file")["a"], float)


def test_nan_is_a_number() -> None:
    assert math.isnan(parse_yaml("a: .nan", "file")["a"])


def test_an_anchor_may_be_merged_and_overridden() -> None:
    text = "base: &b {x: 1, y: 2}\nmade:\n  <<: *b\n  y: 3\n"
    assert parse_yaml(text, "file")["made"] == {"x": 1, "y": 3} == dict(as_dvc(text)["made"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {epochs: 1, epochs: 2}", "epochs: written twice .line 1"),
        ("a: 1\nb: 2\na: 3\n", "a: written twice .line 3"),
        ("[a]: 1", r"\['a'\]: a key must be a plain text"),
        ("? !!set {a}\n: 1", "a key must be a plain text"),
        ("a: [1", "is not valid YAML"),
        ("a: 2024-13-45", "is not valid YAML: month must be in 1..12"),
        (f"a: {'9' * 5000}", "is not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]", "is not valid YAML"),
        ("- a\n- b", "'list': must hold a mapping of groups"),
        ("", "'NoneType': must hold a mapping of groups"),
        ("[" * 1000, "is nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_told_with_the_file(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(ParamError, match=message):
        read_yaml(path)


def test_a_missing_file_and_a_file_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"nowhere\.yaml: no such file$"):
        read_yaml(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ParamError, match=r"latin\.yaml: cannot be read"):
        read_yaml(tmp_path / "latin.yaml")
    with pytest.raises(ParamError, match="cannot be read"):
        read_yaml(tmp_path)
