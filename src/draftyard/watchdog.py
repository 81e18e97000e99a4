"""No orphans: a stage ends when the `dvc` that started it is gone.

DVC passes no signal on. On SIGTERM or SIGKILL it dies at once and would leave the stage running, on a GPU for days.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)
DVC_VARIABLE = "DVC_STAGE"
WATCHED_VARIABLE = "DRAFTYARD_DVC_PID"
GRACE_SECONDS = 20.0
EXIT_INTERRUPTED = 130
_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh"}


def watch_dvc() -> None:
    """Where DVC started this process: interrupt it when DVC ends first, and end it hard GRACE_SECONDS later.

    Does nothing for a stage that was started by hand, which may outlive its terminal.
    """
    if DVC_VARIABLE not in os.environ:
        return
    # Kept in the environment: a stage that replaces itself (stage.enter_own_code) goes on watching the same process.
    pid = int(os.environ.setdefault(WATCHED_VARIABLE, str(_parent_beyond_shells(os.getppid()))))
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        _end()
        return
    except OSError as error:  # a kernel without pidfds
        log.warning("a dvc that is killed will leave this stage running: process %d cannot be watched (%s)", pid, error.strerror)
        return
    threading.Thread(target=_wait, args=(descriptor,), name="watchdog", daemon=True).start()


def _parent_beyond_shells(pid: int) -> int:
    """`pid`, or its first ancestor that is no shell: DVC starts a stage through one, which may stay in between."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return pid
    name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
    return _parent_beyond_shells(int(rest[1])) if name in _SHELLS and int(rest[1]) > 1 else pid


def _wait(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll():
        pass
    _end()


def _end() -> None:
    """Interrupt the main thread as a signal from outside would; where it does not react (a long call into C), leave without it."""
    log.warning("the dvc that started this stage is gone: stopping")
    os.kill(os.getpid(), signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        time.sleep(GRACE_SECONDS)
        os._exit(EXIT_INTERRUPTED)
