"""What Python itself costs a process that imports torch, transformers and vLLM, and how not to pay it.

Some 5,000 modules are imported: the collector looks through a growing heap over and over on the way in (about 2 s of a vLLM
process's start on one core), and the interpreter takes it apart object by object on the way out (about 3 s).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
from typing import NoReturn

YOUNG, MIDDLE, OLD = 100_000, 20, 100
"""Thresholds of the three generations (gc.set_threshold); Python's own are 700, 10 and 10."""


def collect_rarely() -> None:
    """Look for garbage in cycles a hundred times less often. What the reference counts free is freed at once as ever."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)


def leave(code: int = 0) -> NoReturn:
    """End this process with `code`: its threads are awaited, its exit handlers run and its output is flushed, but the kernel frees the heap, as a whole.

    gc.freeze() before a usual end is as fast, but has nanobind (triton) print what was left over.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # this and the next as multiprocessing does before it leaves a child
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it was closed
            stream.flush()
    os._exit(code)
