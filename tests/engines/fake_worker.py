"""A worker process without an engine, for the tests of those who watch it: `python fake_worker.py SCENARIO DIRECTORY REPLY_FD`.

Answers a request with its prompt reversed, one per step. SCENARIO decides what goes wrong, counted over starts in DIRECTORY/starts:
once-<what>: in the first start only; always-<what>; never. <what>: exit, kill, hang, stop, raise, mistake, deaf, die-at-start, mistake-at-start.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from draftyard.engines.worker import Read, Reply, run_worker
from draftyard.errors import DraftyardError


def trouble(what: str) -> None:
    print(f"about to {what}", file=sys.stderr, flush=True)
    if what in ("exit", "die-at-start"):
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "raise":
        raise RuntimeError("CUDA out of memory. Tried to allocate\n2 GiB")
    if what in ("mistake", "mistake-at-start"):
        raise DraftyardError("params.yaml: the verifier cannot be read")


def serve(config: dict[str, Any], read: Read, reply: Reply) -> None:
    count, _, what = scenario.partition("-")
    starts = directory / "starts"
    number = int(starts.read_text()) if starts.exists() else 0
    starts.write_text(str(number + 1))
    wrong = what if count == "always" or (count == "once" and number == 0) or (count == "second" and number == 1) else ""
    if wrong.endswith("-at-start"):
        trouble(wrong)
    (directory / "config").write_text(repr(sorted(config)))
    reply({"ready": True})
    if wrong == "deaf":
        time.sleep(600)
    steps = 0
    while batch := read():
        waiting = list(batch["requests"])
        while waiting:
            request = waiting.pop(0)
            steps += 1
            if steps == 2 and wrong:
                trouble(wrong)
            reply({"new": len(request["token_ids"]), "finished": [(request["id"], request["token_ids"][::-1], "stop")]})
            waiting += (read() or {"requests": []})["requests"]
        reply({"done": True})


if __name__ == "__main__":
    scenario, directory = sys.argv[1], Path(sys.argv[2])
    run_worker(int(sys.argv[3]), serve)
