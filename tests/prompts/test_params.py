"""prompts.sources is checked before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from draftyard.errors import ParamError

from .defaults import params

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, r"sources\[0\]\.kind: must be one of embedded, jsonl, hf"),
        ({"kind": ["jsonl"]}, r"kind=\['jsonl'\]: must be one of"),
        ({"kind": "jsonl"}, r"path: must lie below data/sources"),
        ({"kind": "jsonl", "path": "/etc/passwd"}, "must lie below data/sources"),
        ({"kind": "jsonl", "path": "data/sources/../../x.jsonl"}, "must lie below data/sources"),
        ({"kind": "jsonl", "path": 3}, r"path=3: must be a text"),
        ({"kind": "jsonl", "path": "data/sources/a.jsonl", "category": 3}, "category=3: must be a text"),
        ({"kind": "jsonl", "path": "data/sources/a.jsonl", "split": "train"}, "unknown key for kind jsonl; known: category, path"),
        ({"kind": "hf", "revision": COMMIT}, "hf needs the data set's id"),
        ({"kind": "hf", "name": "../x", "revision": COMMIT}, "hf needs the data set's id"),
        ({"kind": "hf", "name": "org/x"}, "hf needs the full commit hash"),
        ({"kind": "hf", "name": "org/x", "revision": "main"}, "revision='main': hf needs the full commit hash"),
        ({"kind": "hf", "name": "org/x", "revision": "z" * 40}, "hf needs the full commit hash"),
    ],
)
def test_a_source_that_cannot_work(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        params(sources=(source,))


def test_sources_that_work() -> None:
    params(
        sources=({"kind": "jsonl", "path": "data/sources/a.jsonl", "category": None}, {"kind": "hf", "name": "org/x.y-z", "revision": COMMIT, "split": "test"})
    )
