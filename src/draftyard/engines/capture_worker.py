"""The child process that captures hidden states (see worker.py).

configuration  model, max_model_len, engine_args, trust_remote_code, runtime, storage, aux_layer_ids, num_layers, hidden_size
{"do": "capture", "samples", "path", "dtype"} -> {"new"} after every sample, then {"done", "entry"}
{"do": "canary", "samples", "card", "params"} -> {"metrics"}
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import read_card
from draftyard.artifacts.generations import Generation
from draftyard.engines.vllm_engine import start_extraction_engine
from draftyard.engines.worker import Read, Reply, run_worker, shared_options
from draftyard.params.base import build
from draftyard.params.hidden_states import HiddenStatesParams


def serve(config: dict[str, Any], read: Read, reply: Reply) -> None:
    """Start the engine and do what is asked."""
    layers = tuple(config["aux_layer_ids"])
    llm = start_extraction_engine(Path(config["model"]), layers, config["num_layers"], Path(config["storage"]), **shared_options(config))
    reply({"ready": True})
    while request := read():
        if request["do"] == "capture":
            capture_shard(llm, config, request, reply)
        else:
            reply({"metrics": canary(llm, config, request)})


def capture_shard(llm: Any, config: dict[str, Any], request: dict[str, Any], reply: Reply) -> None:
    """Capture samples and write them as one shard."""
    from draftyard.artifacts.hidden_states import write_shard
    from draftyard.engines.extract import capture

    samples = []
    for sample in capture(llm, conversations(request["samples"]), config["hidden_size"], len(config["aux_layer_ids"]) + 1):
        samples.append(sample)
        reply({"new": len(sample.token_ids)})
    reply({"done": True, "entry": write_shard(Path(request["path"]), samples, request["dtype"])})


def canary(llm: Any, config: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Prove the captured states of a few samples."""
    from draftyard.engines.canary import run_canary

    params = build(HiddenStatesParams, "hidden_states", request["params"])
    return run_canary(llm, conversations(request["samples"]), Path(config["model"]), read_card(Path(request["card"])), config["aux_layer_ids"], params)


def conversations(rows: list[dict[str, Any]]) -> list[Generation]:
    """The conversations of capturing.rows, without their turns, which capturing does not need."""
    return [Generation(**{**row, "loss_spans": [(int(start), int(end)) for start, end in row["loss_spans"]]}, turns=[]) for row in rows]


if __name__ == "__main__":
    run_worker(int(sys.argv[1]), serve)
