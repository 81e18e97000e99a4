"""The processes of one training (torchrun, accelerate): the first one writes, and what it decides or fails at reaches all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from draftyard.errors import DraftyardError, sentence


class Ranks:
    """The processes that `accelerator` (accelerate.Accelerator) knows; on one process `first` is a plain call."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(self._accelerator.is_main_process)

    def first(self, make: Callable[[], Any]) -> Any:
        """Run `make` on the first process while the others wait. Returns its JSON value on all of them.

        Whatever the first process fails at, all fail at: the others raise a DraftyardError with its words.
        """
        if self._accelerator.num_processes == 1:
            return make()
        failure: BaseException | None = None
        outcome: dict[str, Any] = {}
        if self.is_first:
            try:
                outcome = {"value": make()}
            except BaseException as error:  # also Ctrl-C: the others must not wait for ever
                failure = error
                outcome = {"error": sentence(error) or f"{type(error).__name__}: {error}"}
        outcome = self._broadcast(outcome)
        if failure is not None:
            raise failure
        if "error" in outcome:
            raise DraftyardError(f"the first process failed: {outcome['error']}")
        return outcome["value"]

    def _broadcast(self, value: dict[str, Any]) -> dict[str, Any]:
        """The first process's `value` on all. As JSON in a tensor: torch's own broadcast of objects would unpickle what it receives."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        device = self._accelerator.device
        length = torch.tensor([len(text)], dtype=torch.int64, device=device)
        torch.distributed.broadcast(length, src=0)
        content = text.to(device) if self.is_first else torch.empty(int(length), dtype=torch.uint8, device=device)
        torch.distributed.broadcast(content, src=0)
        decoded: dict[str, Any] = json.loads(bytes(content.cpu().tolist()))
        return decoded
