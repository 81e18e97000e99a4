"""Opening and parsing files that strangers wrote: regular files only, bounded sizes, strict JSON."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from draftyard.errors import ArtifactError

MAX_JSON_BYTES = 4 << 20
"""A draft's config.json, index or header; the largest seen in public is far below. Bounds memory and time of the parser."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, unbuffered. A symbolic link is followed to a regular file only, never to a device, pipe or socket.

    Raises ArtifactError naming the path.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ArtifactError(f"{path}: is not a regular file (a directory, device, pipe or socket); it is not opened")
        # Between the two stats the path may be replaced: O_NONBLOCK cannot hang on a pipe, and the second decides.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ArtifactError(f"{path}: is not a regular file; it is not read")
        return os.fdopen(descriptor, "rb", buffering=0)
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ArtifactError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error})") from None


def read_untrusted_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file. Raises ArtifactError as `parse_json` does, or when the file exceeds `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ArtifactError(f"{path}: {size} bytes, more than the {max_bytes} that such a file may have")
        data = file.read(max_bytes + 1)
    return parse_json(data, str(path))


def parse_json(data: bytes, source: str) -> dict[str, Any]:
    """The object in JSON text, strictly: UTF-8, no duplicate keys, no NaN or Infinity. Raises ArtifactError naming `source`."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ArtifactError(f"{source}: is nested too deeply to be JSON of a checkpoint") from None
    except (ValueError, MemoryError) as error:
        raise ArtifactError(f"{source}: is not valid JSON ({printable(str(error), 160)})") from None
    if not isinstance(value, dict):
        raise ArtifactError(f"{source}: holds a {type(value).__name__}, expected an object")
    return value


def printable(text: str, limit: int = 120) -> str:
    """`text` for a terminal: control characters escaped, cut to `limit` characters."""
    clean = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {printable(twice, 60)!r} is written twice")
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")
