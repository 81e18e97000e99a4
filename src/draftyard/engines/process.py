"""The child process that holds an engine: spoken to in JSON lines, watched, and replaced by nobody here (see supervised.py)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError

LOG_LINES = 12
CHUNK_BYTES = 1 << 16
POLL_SECONDS = 1.0
CLOSE_SECONDS = 20.0


class WorkerProcess:
    """A child that reads JSON lines from its standard input and writes JSON lines to a pipe whose number is its last argument.

    Every exchange has a bound: a child that neither takes nor says anything within it is killed. Its own output goes to the end of `log`.

    Raises:
        EngineFailure: the child died, hung, or told of a failure of its engine; with the last lines of the log.
        DraftyardError: the child told of a mistake that asking again would not mend.
    """

    def __init__(self, command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self._log = log
        read_fd, write_fd = os.pipe()
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [*command, str(write_fd)], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=(write_fd,), env=environment, bufsize=0
            )
        os.close(write_fd)
        assert self._child.stdin is not None
        self._requests = self._child.stdin
        os.set_blocking(self._requests.fileno(), False)  # a child that hangs reads nothing: a plain write would wait for ever
        self._replies = read_fd
        self._buffer = bytearray()
        self._closed = False

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def send(self, value: dict[str, Any], seconds: float) -> None:
        """Write one line."""
        data = memoryview(json.dumps(value).encode() + b"\n")
        while data:
            _, ready, _ = select.select([], [self._requests], [], seconds)
            if not ready:
                self._hung(seconds)
            try:
                data = data[os.write(self._requests.fileno(), data[:CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                self._dead()

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next line; what arrives counts as a sign of life."""
        deadline = time.monotonic() + seconds
        while (end := self._buffer.find(b"\n")) < 0:
            ready, _, _ = select.select([self._replies], [], [], min(POLL_SECONDS, seconds))
            if ready:
                chunk = os.read(self._replies, CHUNK_BYTES)
                if not chunk:
                    self._dead()
                self._buffer += chunk
                deadline = time.monotonic() + seconds
            elif self._child.poll() is not None:  # a grandchild may hold the pipe open
                self._dead()
            elif time.monotonic() > deadline:
                self._hung(seconds)
        reply: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        if "error" in reply:
            self.kill()
            raise DraftyardError(reply["error"])
        if "failed" in reply:
            self._fail(f"failed: {reply['failed']}")
        return reply

    def close(self) -> None:
        """End the child: its input ends, then it is killed if it does not go by itself."""
        with contextlib.suppress(OSError):
            self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the child now. Harmless when it has gone."""
        self._child.kill()
        self._child.wait()
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._requests.close()
            os.close(self._replies)

    def _hung(self, seconds: float) -> NoReturn:
        self._fail(f"gave no sign of life for {seconds:g} s and was stopped")

    def _dead(self) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=POLL_SECONDS)
        code = self._child.poll()
        if code is None:
            self._fail("closed its pipe and was stopped")
        if code < 0:
            hint = " (the kernel kills so when memory runs out)" if code == -signal.SIGKILL else ""
            self._fail(f"was killed by {signal.Signals(-code).name}{hint}")
        self._fail(f"ended with exit code {code}")

    def _fail(self, what: str) -> NoReturn:
        self.kill()
        raise EngineFailure(f"the engine {what}; the last lines of {self._log}:\n" + last_lines(self._log))


def last_lines(log: Path, count: int = LOG_LINES) -> str:
    """The last `count` lines of a log, indented; says so when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - CHUNK_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        lines = []
    return "\n".join(f"  {line}" for line in lines) or "  (it is empty)"
