"""What every child process that holds an engine shares: `python -m draftyard.engines.<kind>_worker REPLY_FD`.

JSON lines, requests on standard input, replies on REPLY_FD. The first line is the configuration, answered by {"ready"} when the
engine is up. Every reply is a sign of life. "error" is a mistake that would happen again, "failed" the engine's own failure; both are last words.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError
from draftyard.interpreter import collect_rarely, leave
from draftyard.runtime import EngineRuntime

PR_SET_PDEATHSIG = 1  # linux/prctl.h
Reply = Callable[[dict[str, Any]], None]
Read = Callable[[], dict[str, Any] | None]


def run_worker(reply_fd: int, serve: Callable[[dict[str, Any], Read, Reply], None]) -> NoReturn:
    """Serve until the input ends, and end the process (see `serve_requests`)."""
    collect_rarely()
    leave(serve_requests(reply_fd, serve))


def serve_requests(reply_fd: int, serve: Callable[[dict[str, Any], Read, Reply], None]) -> int:
    """Call `serve` with the configuration, a function that reads the next request (None when there are no more), and one that replies.

    An error is told. Returns the exit code.
    """
    os.set_inheritable(reply_fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the stage, which ends this process
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a stage that is killed leaves nobody writing into its work area
    with os.fdopen(reply_fd, "w", encoding="utf-8") as replies:

        def reply(value: dict[str, Any]) -> None:
            replies.write(json.dumps(value) + "\n")
            replies.flush()

        def read() -> dict[str, Any] | None:
            line = sys.stdin.readline()
            return dict(json.loads(line)) if line else None

        try:
            config = read()
            if config is not None:
                serve(config, read, reply)
        except EngineFailure as error:
            reply({"failed": str(error)})
            return 1
        except DraftyardError as error:
            reply({"error": str(error)})
            return 1
        except Exception as error:
            traceback.print_exc()
            reply({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"})
            return 1
    return 0


def shared_options(config: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of vllm_engine.start_engine and start_extraction_engine that every configuration has."""
    return {
        "max_model_len": config["max_model_len"],
        "runtime": EngineRuntime(**config["runtime"]),
        "engine_args": config["engine_args"],
        "trust_remote_code": config["trust_remote_code"],
    }
