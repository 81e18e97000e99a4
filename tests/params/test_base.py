"""How mappings become dataclasses: one rule broken at a time, and the sentence that says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from draftyard.errors import DraftyardError, ParamError
from draftyard.params.base import build, coerce, require


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    kind: Literal["a", "b"]
    rate: float
    count: int | None
    names: tuple[str, ...]
    free: dict[str, Any]
    flag: bool


GOOD: dict[str, Any] = {"inner": {"size": 3}, "kind": "a", "rate": 1, "count": None, "names": ["x"], "free": {"k": [1, None, {"d": 0.5}]}, "flag": False}


def test_a_good_mapping_builds_with_whole_numbers_as_floats() -> None:
    built = build(Outer, "group", GOOD)
    assert built == Outer(inner=Inner(size=3), kind="a", rate=1.0, count=None, names=("x",), free={"k": [1, None, {"d": 0.5}]}, flag=False)
    assert isinstance(built.rate, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": "1e-3"}, "group.rate='1e-3': must be a number"),
        ({"rate": True}, "group.rate=True: must be a number"),
        ({"rate": float("nan")}, "group.rate=nan: must be finite"),
        ({"rate": float("inf")}, "group.rate=inf: must be finite"),
        ({"rate": None}, "group.rate: must be a number"),
        ({"count": 2.0}, "group.count=2.0: must be a whole number"),
        ({"count": True}, "group.count=True: must be a whole number"),
        ({"count": "2"}, "group.count='2': must be a whole number"),
        ({"kind": "c"}, "group.kind='c': must be one of a, b"),
        ({"kind": ["a"]}, r"group.kind=\['a'\]: must be one of a, b"),
        ({"names": "x"}, "group.names='x': must be a list"),
        ({"names": ["x", 1]}, r"group.names\[1\]=1: must be a text"),
        ({"flag": 1}, "group.flag=1: must be true or false"),
        ({"flag": "yes"}, "group.flag='yes': must be true or false"),
        ({"free": ["k"]}, r"group.free=\['k'\]: must be a mapping"),
        ({"free": {1: "x"}}, "group.free.1='x': its key must be a text"),
        ({"free": {"k": float("nan")}}, "group.free=.*must hold texts, numbers"),
        ({"inner": 3}, "group.inner=3: must be a mapping of keys to values"),
        ({"inner": {"size": 3, "sizes": 4}}, r"group.inner.sizes=4: unknown key \(is size meant\?\); known keys: size"),
        ({"inner": {}}, "group.inner.size: missing"),
        ({"extra": 1}, "group.extra=1: unknown key; known keys: inner, kind, rate"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=f"^{message}"):
        build(Outer, "group", {**GOOD, **change})


def test_a_date_inside_a_free_mapping_is_refused_before_it_reaches_a_digest() -> None:
    import datetime

    with pytest.raises(ParamError, match="put a date in quotes"):
        build(Outer, "group", {**GOOD, "free": {"date_string": datetime.date(2024, 7, 26)}})


def test_a_whole_number_too_large_for_a_float_is_not_finite() -> None:
    with pytest.raises(ParamError, match="must be finite"):
        coerce("k", 10**400, float)


@pytest.mark.parametrize("values", [None, [], "text", 3])
def test_a_group_that_is_no_mapping(values: object) -> None:
    with pytest.raises(ParamError, match="^group.*must be a mapping"):
        build(Outer, "group", values)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ParamError, match=r"^group\.rate: missing"):
        build(Outer, "group", {key: value for key, value in GOOD.items() if key != "rate"})


def test_the_error_carries_its_parts_and_is_a_users_error() -> None:
    error = ParamError("draft.head_dim", 7, "must be even")
    assert (str(error), error.key, error.value, error.rule) == ("draft.head_dim=7: must be even", "draft.head_dim", 7, "must be even")
    assert isinstance(error, DraftyardError)
    assert str(ParamError("params.yaml", None, "no such file")) == "params.yaml: no such file"
    assert str(ParamError("x", 0, "must be positive")) == "x=0: must be positive"


def test_require_raises_only_when_the_condition_fails() -> None:
    require(True, "k", 1, "rule")
    with pytest.raises(ParamError, match="^k=1: rule$"):
        require(False, "k", 1, "rule")
