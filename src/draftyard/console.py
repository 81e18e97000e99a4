"""A stage's terminal, kept apart from the chatter of the libraries that run in it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

STDERR = 2
MAX_LOG_BYTES = 16 << 20
"""A longer log is started over."""
TAIL_LINES = 12
CLEAR_LINE = "\r\x1b[2K"
OWN_LINE = "%(asctime)s draftyard {name}: %(message)s"
"""Our own lines in the log of stage `name` (logging's %-format); `Chatter.tail` leaves them out, because the terminal has them."""
_OWN = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} draftyard ")

_terminal: TextIO | None = None  # a process has one standard error, so one module keeps where it led


def terminal() -> TextIO:
    """Where the user reads: standard error as this process found it, also while `chatter_to` sends file descriptor 2 elsewhere."""
    return _terminal or sys.stderr


@dataclass(frozen=True)
class Chatter:
    """The log file `path`; this run's part begins at byte `start`."""

    path: Path
    start: int

    def tail(self, count: int = TAIL_LINES) -> list[str]:
        """The last lines that a library wrote in this run. A progress bar, redrawn with carriage returns, is its last state."""
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self.start, file.seek(0, os.SEEK_END) - (1 << 16)))
            lines = (line.rstrip("\r\n").rsplit("\r", 1)[-1] for line in file.read().decode(errors="replace").split("\n"))
            return list(deque((line for line in lines if line.strip() and not _OWN.match(line)), maxlen=count))
        return []


@contextlib.contextmanager
def chatter_to(path: Path) -> Iterator[Chatter]:
    """Append to `path` what Python, C and child processes write to standard error; `terminal()` still leads to the user.

    File descriptor 2 itself is replaced: vLLM, tokenizers and OpenMP write from compiled code.
    """
    global _terminal
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.unlink()
    sys.stderr.flush()
    saved = os.dup(STDERR)
    with path.open("ab") as log:
        start = log.tell()
        os.dup2(log.fileno(), STDERR)
    outer, _terminal = _terminal, os.fdopen(saved, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    try:
        yield Chatter(path, start)
    finally:
        restore_standard_error()
        _terminal.close()
        _terminal = outer


def restore_standard_error() -> None:
    """Lead file descriptor 2 to the user again: before an exec, which would pass the log on as the new process's standard error."""
    sys.stderr.flush()
    if _terminal is not None:
        os.dup2(_terminal.fileno(), STDERR)
