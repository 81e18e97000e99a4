"""The child process in which the verifier answers (see worker.py).

configuration  model, max_model_len, engine_args, trust_remote_code, runtime
{"requests"} -> {"new", "finished": [[id, token_ids, finish_reason]]} after every step; after one that finished something,
                {"requests"} is read: what joins the batch; at the end {"done"}
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from draftyard.engines.requests import Request
from draftyard.engines.vllm_engine import LocalEngine, start_engine
from draftyard.engines.worker import Read, Reply, run_worker, shared_options


def serve(config: dict[str, Any], read: Read, reply: Reply) -> None:
    """Start the engine and answer batch after batch."""
    engine = LocalEngine(start_engine(Path(config["model"]), **shared_options(config)))
    reply({"ready": True})
    while batch := read():
        answer(engine, batch["requests"], read, reply)


def answer(engine: LocalEngine, requests: list[dict[str, Any]], read: Read, reply: Reply) -> None:
    """Answer a batch. What is added after a step joins before the next one, so that it does not matter who is faster."""
    _add(engine, requests)
    for new, finished in engine.steps():
        reply({"new": new, "finished": [(done.id, done.token_ids, done.finish_reason) for done in finished]})
        if finished and (more := read()):
            _add(engine, more["requests"])
    reply({"done": True})


def _add(engine: LocalEngine, requests: list[dict[str, Any]]) -> None:
    for request in requests:
        engine.add(Request(**request))


if __name__ == "__main__":
    run_worker(int(sys.argv[1]), serve)
