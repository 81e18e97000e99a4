"""The shapes of prompt rows found in the wild, brought to one: system prompt, user turns, category, id."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftyard.prompts.text import MAX_COMBINING_RUN, has_combining_run, normalise

MAX_TEXT_CHARS = 100_000
MAX_TURNS = 64
MAX_CATEGORY_CHARS = 64

USER_ROLES = ("user", "human", "prompter")
ASSISTANT_ROLES = ("assistant", "gpt", "chatgpt", "bot", "bing", "bard", "model")
SYSTEM_ROLES = ("system", "developer")
ID_KEYS = ("id", "prompt_id", "question_id")
SYSTEM_KEYS = ("system", "system_prompt")

_ID = re.compile(r"[A-Za-z0-9._:-]{1,80}")
_SURROGATE = re.compile("[\ud800-\udfff]")


class RowError(ValueError):
    """Why a row gives no prompt. The text quotes at most a few characters of the row, escaped."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row that can be asked. category, id: what the row says, None when it says nothing usable."""

    system: str | None
    turns: tuple[str, ...]
    category: str | None
    id: str | None


def parse_row(row: object) -> Row:
    """Read a row of any known shape (see SHAPES; the first key present decides). Answers in the row are dropped.

    Raises:
        RowError: no known shape, a wrong type, no user turn, or a text that cannot be asked.
    """
    if not isinstance(row, Mapping):
        raise RowError(f"is a {type(row).__name__}, expected an object")
    shape = next((key for key in SHAPES if row.get(key) is not None), None)
    if shape is None:
        raise RowError(f"has no known shape: none of the keys {', '.join(SHAPES)}")
    system, turns = SHAPES[shape](row, shape)
    system = system if system is not None else _row_system(row)
    if not turns:
        raise RowError(f"{shape} holds no user turn")
    if len(turns) > MAX_TURNS:
        raise RowError(f"{shape} holds {len(turns)} user turns, more than {MAX_TURNS}")
    return Row(
        system=system,
        turns=tuple(_text(turn, f"{shape}: user turn {number}") for number, turn in enumerate(turns, 1)),
        category=clean_category(row.get("category")),
        id=_row_id(row),
    )


def clean_category(value: object) -> str | None:
    """A category as a short name: case folded, runs of anything but letters and digits as "-". None when there is nothing left."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise RowError(f"category is a {type(value).__name__}, expected a text")
    name = _text(value, "category") if isinstance(value, str) and value.strip() else str(value)
    return re.sub(r"[\W_]+", "-", normalise(name[:1000])).strip("-")[:MAX_CATEGORY_CHARS] or None


def _messages(row: Mapping[str, Any], key: str) -> tuple[str | None, list[Any]]:
    """[{role, content}] or ShareGPT's [{from, value}]: leading system messages, and the user's messages in order."""
    messages = row[key]
    if not isinstance(messages, (list, tuple)):
        raise RowError(f"{key} is a {type(messages).__name__}, expected a list")
    system: list[str] = []
    turns: list[Any] = []
    answered = False
    for number, message in enumerate(messages, 1):
        where = f"{key}: message {number}"
        if not isinstance(message, Mapping):
            raise RowError(f"{where} is a {type(message).__name__}, expected an object")
        role = message.get("role") if message.get("role") is not None else message.get("from")
        content = message.get("content") if message.get("content") is not None else message.get("value")
        name = role.strip().lower() if isinstance(role, str) else role
        if name in USER_ROLES:
            turns.append(_content(content, where))
        elif name in ASSISTANT_ROLES:
            answered = True  # the verifier writes its own
        elif name in SYSTEM_ROLES:
            if turns or answered:
                raise RowError(f"{where} is a system message after the conversation began")
            system.append(_text(_content(content, where), where))
        else:
            raise RowError(f"{where} has the role {_quote(role)}; known: user, assistant, system")
    return "\n\n".join(system) or None, turns


def _content(content: object, where: str) -> object:
    """Message content: a text, or a list of text parts [{"type": "text", "text": ...}]."""
    if not isinstance(content, (list, tuple)):
        return content
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RowError(f"{where} holds a part that is not text")
        texts.append(part["text"])
    return "\n".join(texts)


def _turns(row: Mapping[str, Any], key: str) -> tuple[str | None, list[Any]]:
    if not isinstance(row[key], (list, tuple)):
        raise RowError(f"{key} is a {type(row[key]).__name__}, expected a list of texts")
    return None, list(row[key])


def _prompt(row: Mapping[str, Any], key: str) -> tuple[str | None, list[Any]]:
    return _messages(row, key) if isinstance(row[key], (list, tuple)) else (None, [row[key]])


def _instruction(row: Mapping[str, Any], key: str) -> tuple[str | None, list[Any]]:
    """Alpaca: an instruction, and the input it applies to."""
    extra = row.get("input")
    if extra is None or extra == "":
        return None, [row[key]]
    return None, [_text(row[key], key) + "\n\n" + _text(extra, "input")]


def _question(row: Mapping[str, Any], key: str) -> tuple[str | None, list[Any]]:
    return None, [row[key]]


SHAPES: dict[str, Callable[[Mapping[str, Any], str], tuple[str | None, list[Any]]]] = {
    "messages": _messages,
    "conversations": _messages,
    "conversation": _messages,
    "turns": _turns,
    "prompt": _prompt,
    "instruction": _instruction,
    "question": _question,
}


def _row_system(row: Mapping[str, Any]) -> str | None:
    for key in SYSTEM_KEYS:
        value = row.get(key)
        if value is not None and value != "":
            return _text(value, key)
    return None


def _row_id(row: Mapping[str, Any]) -> str | None:
    for key in ID_KEYS:
        value = row.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
            return str(value)
        if isinstance(value, str) and _ID.fullmatch(value):
            return value
    return None


def _text(value: object, where: str) -> str:
    """`value` when it is a text that can be asked; RowError otherwise."""
    if not isinstance(value, str):
        raise RowError(f"{where} is {'empty' if value is None else f'a {type(value).__name__}, expected a text'}")
    if len(value) > MAX_TEXT_CHARS:
        raise RowError(f"{where} is {len(value)} characters long, more than {MAX_TEXT_CHARS}")
    if "\0" in value:
        raise RowError(f"{where} holds a NUL character")
    if _SURROGATE.search(value):
        raise RowError(f"{where} holds half a surrogate pair, which is no character")
    if has_combining_run(value):
        raise RowError(f"{where} holds more than {MAX_COMBINING_RUN} combining marks in a row")
    if not normalise(value):
        raise RowError(f"{where} is empty")
    return value


def _quote(value: object) -> str:
    return ascii(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"
