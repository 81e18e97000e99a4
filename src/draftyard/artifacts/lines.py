"""Lines of a text file that may be hostile: bounded in length, counted from 1, parsed with a reason when they are broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

MAX_LINE_BYTES = 4 << 20
"""Longest line that is parsed. A longer one is read past in pieces of this size, never held."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """Line `number` (from 1) of a file: its bytes without surrounding white space, or None when it is `size` > the limit long."""

    number: int
    raw: bytes | None
    size: int


def bounded_lines(file: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines of `file` that are not blank. Holds at most `limit` bytes of it at a time."""
    number = 0
    while piece := file.readline(limit + 1):
        number += 1
        size = len(piece)
        while not piece.endswith(b"\n") and (rest := file.readline(limit + 1)):
            size += len(rest)
            piece = rest
        if size - piece.endswith(b"\n") > limit:
            yield Line(number, None, size)
            continue
        raw = (piece.removeprefix(BYTE_ORDER_MARK) if number == 1 else piece).strip()
        if raw:
            yield Line(number, raw, size)


def parse_line(line: Line) -> Any:
    """The JSON value of a line. Raises ValueError whose text is the reason, free of the line's own content."""
    if line.raw is None:
        raise ValueError(f"is {line.size} bytes long, more than the {MAX_LINE_BYTES} of the longest line that is read")
    try:
        return json.loads(line.raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte 0x{line.raw[error.start]:02x} at position {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("is not JSON that can be read (nested too deeply)") from None
    except ValueError:  # CPython's limit on the digits of a whole number
        raise ValueError("is not JSON that can be read (a number is too long)") from None
