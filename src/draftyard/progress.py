"""Progress of long work: a live line on a terminal, one plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

PLAIN_INTERVAL_SECONDS = 15.0
LIVE_INTERVAL_SECONDS = 0.2


def format_seconds(seconds: float) -> str:
    """Seconds as "42s", "3m05s" or "2h07m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Counts `total` units of work under `label`; `update` takes what is done and a note shown at the end of the line."""

    def __init__(self, label: str, total: int, unit: str, *, done: int = 0, stream: TextIO | None = None) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._start_done, self._done = done, done
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._printed = self._started

    def update(self, done: int, note: str = "") -> None:
        """Set the number of finished units; prints when it is time to."""
        self._done = done
        now = time.monotonic()
        if now - self._printed >= (LIVE_INTERVAL_SECONDS if self._live else PLAIN_INTERVAL_SECONDS):
            self._printed = now
            self._print(note, end="" if self._live else "\n")

    def close(self, note: str = "") -> None:
        """Print the final line."""
        self._print(note, end="\n")

    def _print(self, note: str, end: str) -> None:
        elapsed = time.monotonic() - self._started
        rate = (self._done - self._start_done) / elapsed if elapsed > 0 else 0.0
        left = (self._total - self._done) / rate if rate > 0 else 0.0
        share = 100 * self._done // self._total if self._total else 100
        text = f"{self._label}: {share:3d}% {self._done}/{self._total} {self._unit}, {rate:.4g}/s, {format_seconds(elapsed)} elapsed"
        if self._done < self._total:
            text += f", {format_seconds(left)} left"
        if note:
            text += f" | {note}"
        self._stream.write(f"\r\x1b[2K{text}{end}" if self._live else f"{text}{end}")
        self._stream.flush()
