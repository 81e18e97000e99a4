"""The verifier answering prompts in a child process (the protocol `Engine`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from draftyard.engines import answer_worker
from draftyard.engines.requests import Finished, Request
from draftyard.engines.supervised import SupervisedEngine, worker_command
from draftyard.runtime import Runtime


class AnsweringEngine(SupervisedEngine):
    """Answers requests (see requests.Engine) in an answer_worker child."""

    def __init__(self, config: dict[str, Any], runtime: Runtime, log: Path, command: tuple[str, ...] = worker_command(answer_worker.__name__)) -> None:
        super().__init__(command, config, runtime, log)
        self._pending: list[Request] = []

    def add(self, request: Request) -> None:
        """See requests.Engine."""
        self._pending.append(request)

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """See requests.Engine. The child waits after a step that finished something, so what is added then always joins the same batch."""
        requests = self._take()
        if not requests:
            return
        try:
            with self.batch() as worker:
                worker.send({"requests": requests}, self.stall_seconds)
                while not (reply := worker.receive(self.stall_seconds)).get("done"):
                    if on_step is not None:
                        on_step(reply["new"])
                    for name, token_ids, reason in reply["finished"]:
                        yield Finished(id=name, token_ids=token_ids, finish_reason=reason)
                    if reply["finished"]:
                        worker.send({"requests": self._take()}, self.stall_seconds)
        finally:
            self._pending = []  # what was added to a batch that is lost is lost with it

    def _take(self) -> list[dict[str, Any]]:
        taken, self._pending = self._pending, []
        return [dict(request.__dict__) for request in taken]
