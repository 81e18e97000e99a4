"""The verifier's hidden states captured in a child process, which also writes the shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftyard.artifacts.generations import Generation
from draftyard.engines import capture_worker
from draftyard.engines.supervised import SupervisedEngine, worker_command
from draftyard.runtime import Runtime


class CapturingEngine(SupervisedEngine):
    """Captures shards (see extract.CaptureEngine) in a capture_worker child."""

    def __init__(self, config: dict[str, Any], runtime: Runtime, log: Path, command: tuple[str, ...] = worker_command(capture_worker.__name__)) -> None:
        super().__init__(command, config, runtime, log)

    def capture_shard(self, generations: list[Generation], path: Path, dtype: str, on_tokens: Callable[[int], None]) -> dict[str, Any]:
        """See extract.CaptureEngine."""
        with self.batch() as worker:
            worker.send({"do": "capture", "path": str(path), "dtype": dtype, "samples": rows(generations)}, self.stall_seconds)
            while not (reply := worker.receive(self.stall_seconds)).get("done"):
                on_tokens(reply["new"])
            entry: dict[str, Any] = reply["entry"]
            return entry

    def canary(self, generations: list[Generation], card: Path, params: dict[str, Any]) -> dict[str, Any]:
        """Prove the captured states of `generations` (see canary.run_canary). card: the verifier's card. params: of the group hidden_states."""
        with self.batch() as worker:
            worker.send({"do": "canary", "samples": rows(generations), "card": str(card), "params": params}, self.stall_seconds)
            metrics: dict[str, Any] = worker.receive(self.start_seconds)["metrics"]  # a reference forward gives no sign of life
            return metrics


def rows(generations: list[Generation]) -> list[dict[str, Any]]:
    """What the worker needs of each conversation."""
    return [{"id": g.id, "category": g.category, "sample": g.sample, "token_ids": g.token_ids, "loss_spans": g.loss_spans} for g in generations]
