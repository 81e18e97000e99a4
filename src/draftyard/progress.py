"""Progress of long work: a live bar on a terminal, one plain line every few seconds elsewhere, and the same lines in the stage's log."""

from __future__ import annotations

import logging
import os
import time
from typing import TextIO

from draftyard.console import CLEAR_LINE, terminal

PLAIN_INTERVAL_SECONDS = 15.0
LIVE_INTERVAL_SECONDS = 0.2
BAR_WIDTH = 20
DEFAULT_COLUMNS = 120

log = logging.getLogger(__name__)


def format_seconds(seconds: float) -> str:
    """Seconds as "42s", "3m05s" or "2h07m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def bar(done: int, total: int, width: int = BAR_WIDTH) -> str:
    """`done` of `total` as "[=====>    ]"."""
    filled = min(width, width * done // total) if total else width
    return f"[{('=' * filled + '>')[:width]:{width}}]"


class Progress:
    """Counts `total` units of work under `label`; `update` takes what is done and a note shown at the end of the line.

    stream: where to print; None: the user's terminal. The logger of this module gets a plain line as often as a file would.
    """

    def __init__(self, label: str, total: int, unit: str, *, done: int = 0, stream: TextIO | None = None) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._start_done, self._done = done, done
        self._stream = stream or terminal()
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn = self._written = self._started

    def update(self, done: int, note: str = "") -> None:
        """Set the number of finished units; prints when it is time to."""
        self._done = done
        now = time.monotonic()
        if self._live and now - self._drawn >= LIVE_INTERVAL_SECONDS:
            self._drawn = now
            self._draw(note)
        if now - self._written >= PLAIN_INTERVAL_SECONDS:
            self._written = now
            self._write(note)

    def close(self, note: str = "") -> None:
        """Print the final line."""
        self._write(note)
        if self._live:
            self._stream.write(f"{CLEAR_LINE}{self._text(note)}\n")
            self._stream.flush()

    def _draw(self, note: str) -> None:
        """Redraw the live line, cut to the terminal's width: a line that wraps cannot be drawn over."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = DEFAULT_COLUMNS
        line = f"{bar(self._done, self._total)} {self._text(note)}"
        self._stream.write(CLEAR_LINE + line[: max(columns - 1, 1)])
        self._stream.flush()

    def _write(self, note: str) -> None:
        """A plain line, to the log and to a stream that is no terminal."""
        text = self._text(note)
        log.info("%s", text)
        if not self._live:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _text(self, note: str) -> str:
        elapsed = time.monotonic() - self._started
        rate = (self._done - self._start_done) / elapsed if elapsed > 0 else 0.0
        share = 100 * self._done // self._total if self._total else 100
        text = f"{self._label}: {share:3d}% {self._done}/{self._total} {self._unit}, {rate:.4g}/s, {format_seconds(elapsed)} elapsed"
        if self._done < self._total and rate > 0:  # before the first item nobody knows
            text += f", {format_seconds((self._total - self._done) / rate)} left"
        return f"{text} | {note}" if note else text
