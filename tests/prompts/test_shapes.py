"""Each shape found in the wild gives its user turns; everything else a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.prompts.shapes import MAX_TEXT_CHARS, MAX_TURNS, Row, RowError, clean_category, parse_row

SHAREGPT = [{"from": "system", "value": "S"}, {"from": "human", "value": "one"}, {"from": "gpt", "value": "A"}, {"from": "human", "value": "two"}]


@pytest.mark.parametrize(
    ("row", "system", "turns"),
    [
        (
            {
                "messages": [
                    {"role": "system", "content": "S"},
                    {"role": "user", "content": "one"},
                    {"role": "assistant", "content": "A"},
                    {"role": "user", "content": "two"},
                ]
            },
            "S",
            ("one", "two"),
        ),
        ({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": None, "tool_calls": []}]}, None, ("one",)),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "more"}]}]}, None, ("one\nmore",)),
        ({"messages": [{"role": "developer", "content": "D"}, {"role": "system", "content": "S"}, {"role": "User ", "content": "one"}]}, "D\n\nS", ("one",)),
        ({"messages": [{"role": "user", "content": "one"}], "system": "row"}, "row", ("one",)),
        ({"messages": None, "conversations": SHAREGPT}, "S", ("one", "two")),
        ({"conversations": [{"from": "gpt", "value": "continued"}, {"from": "human", "value": "one"}]}, None, ("one",)),
        ({"conversations": [{"role": "user", "content": "one"}]}, None, ("one",)),
        ({"conversation": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "A"}]}, None, ("one",)),
        ({"prompt": "one", "response": "A", "chosen": "A"}, None, ("one",)),
        ({"prompt": [{"role": "user", "content": "one"}]}, None, ("one",)),
        ({"instruction": "one", "input": "", "output": "A"}, None, ("one",)),
        ({"instruction": "one", "input": None}, None, ("one",)),
        ({"instruction": "Translate.", "input": "Hallo"}, None, ("Translate.\n\nHallo",)),
        ({"question": "one", "system_prompt": "S", "answer": "A"}, "S", ("one",)),
        ({"turns": ["one", "two"], "reference": ["A", "B"]}, None, ("one", "two")),
        ({"turns": ["one"], "system": ""}, None, ("one",)),
        ({"prompt": "  code:\n\tx = 1\n"}, None, ("  code:\n\tx = 1\n",)),  # text is kept as it is
    ],
)
def test_shapes(row: dict[str, Any], system: str | None, turns: tuple[str, ...]) -> None:
    parsed = parse_row(row)
    assert (parsed.system, parsed.turns) == (system, turns)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "is a list, expected an object"),
        ("text", "is a str, expected an object"),
        (None, "is a NoneType, expected an object"),
        ({}, "has no known shape: none of the keys messages, conversations"),
        ({"text": "a whole document"}, "has no known shape"),
        ({"prompt": ""}, "prompt: user turn 1 is empty"),
        ({"prompt": " \n\u200b"}, "is empty"),
        ({"prompt": 3}, "prompt: user turn 1 is a int, expected a text"),
        ({"prompt": {"a": 1}}, "is a dict, expected a text"),
        ({"turns": []}, "turns holds no user turn"),
        ({"turns": "one"}, "turns is a str, expected a list of texts"),
        ({"turns": ["one", None]}, "turns: user turn 2 is empty"),
        ({"turns": ["x"] * (MAX_TURNS + 1)}, "holds 65 user turns, more than 64"),
        ({"messages": []}, "messages holds no user turn"),
        ({"messages": {"role": "user"}}, "messages is a dict, expected a list"),
        ({"messages": ["hi"]}, "messages: message 1 is a str, expected an object"),
        ({"messages": [{"role": "assistant", "content": "A"}]}, "holds no user turn"),
        ({"messages": [{"content": "x"}]}, "message 1 has the role of type NoneType"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "has the role of type list"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "42"}]}, "message 2 has the role 'tool'"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "S"}]}, "message 2 is a system message after the conversation began"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}]}, "message 1 holds a part that is not text"),
        ({"messages": [{"role": "user"}]}, "user turn 1 is empty"),
        ({"conversations": [{"from": "human", "value": {"x": 1}}]}, "is a dict, expected a text"),
        ({"instruction": "one", "input": 7}, "input is a int, expected a text"),
        ({"prompt": "one", "system": ["S"]}, "system is a list, expected a text"),
        ({"prompt": "one", "category": ["c"]}, "category is a list, expected a text"),
        ({"prompt": "x" * (MAX_TEXT_CHARS + 1)}, "is 100001 characters long, more than 100000"),
        ({"prompt": "a\0b"}, "holds a NUL character"),
        ({"prompt": "half \ud83d pair"}, "holds half a surrogate pair"),
        ({"prompt": "one", "system": "\udc00"}, "system holds half a surrogate pair"),
        ({"prompt": "z" + "\u0301\u0316" * 40000}, "holds more than 64 combining marks in a row"),
    ],
)
def test_reasons(row: object, reason: str) -> None:
    with pytest.raises(RowError) as error:
        parse_row(row)
    assert reason in str(error.value)


def test_a_reason_is_safe_to_print() -> None:
    with pytest.raises(RowError) as error:
        parse_row({"messages": [{"role": "\x1b[2J\ud800" + "x" * 10_000, "content": "y"}]})
    text = str(error.value)
    assert text.isprintable()
    assert len(text) < 200


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [("mt-1", "mt-1"), (81, "81"), ("a/b c", None), ("x" * 81, None), (True, None), (1.5, None), (None, None), (10**30, None), ("\x1b", None)],
)
def test_ids_that_can_be_kept(given_id: object, kept: str | None) -> None:
    assert parse_row({"prompt": "x", "id": given_id}).id == kept


def test_question_id_of_mt_bench() -> None:
    assert parse_row({"question_id": 81, "category": "writing", "turns": ["one", "two"]}) == Row(system=None, turns=("one", "two"), category="writing", id="81")


@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("Math", "math"),
        ("Creative Writing / Poems", "creative-writing-poems"),
        ("a_b", "a-b"),
        ("数学", "数学"),
        (3, "3"),
        ("", None),
        (" ", None),
        ("??", None),
        (None, None),
        ("x" * 500, "x" * 64),
    ],
)
def test_categories_become_short_names(category: object, name: str | None) -> None:
    assert clean_category(category) == name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "from", "content", "value", "type", "text"]), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["messages", "conversations", "turns", "prompt", "instruction", "input", "question", "system", "category", "id"]),
        json_values,
        max_size=4,
    )
)
def test_any_json_gives_a_row_or_a_reason(row: dict[str, Any]) -> None:
    reason, parsed = "", None
    try:
        parsed = parse_row(row)
    except RowError as error:
        reason = str(error)
    assert reason.isprintable()
    if parsed is not None:
        assert parsed.turns
        json.dumps([parsed.system, *parsed.turns, parsed.category], ensure_ascii=False).encode("utf-8")
    else:
        assert reason
