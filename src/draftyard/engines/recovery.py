"""What to do when the engine fails in the middle of a shard: ask again, and when that does not help, find the sample that it fails on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")

WHOLE_TRIES = 2
SHOWN = 10


class Recovery:
    """Runs shards on an engine that may fail, within bounds.

    max_restarts: failures in a row, without anything answered between them, before the stage fails.
    max_poisonous: samples that may be left out; name of the params key that says so is `bound`.
    """

    def __init__(self, max_restarts: int, max_poisonous: int, bound: str) -> None:
        self._max_restarts = max_restarts
        self._max_poisonous = max_poisonous
        self._bound = bound
        self._in_a_row = 0
        self._poisonous: list[str] = []

    def run(self, items: list[Item], run: Callable[[list[Item]], Result], name: Callable[[Item], str]) -> tuple[Result, list[str]]:
        """`run(items)`, again when the engine fails, and without the samples that it fails on each by itself. Returns (result, their names).

        The result always comes from one run over all samples that are left, in their order: it does not depend on how often the engine failed.

        Raises:
            EngineFailure: too many failures in a row, or the samples fail together and none of them alone.
            DraftyardError: more poisonous samples than the bound allows.
        """
        left, out = items, list[str]()
        while True:
            for _ in range(WHOLE_TRIES):
                outcome = self._attempt(left, run, name)
                if not isinstance(outcome, EngineFailure):
                    return outcome, out
            poisonous = self._isolate(left, run, name)
            if not poisonous:
                outcome = self._attempt(left, run, name)
                if not isinstance(outcome, EngineFailure):
                    return outcome, out
                raise EngineFailure(
                    f"the engine fails on {len(left)} samples together ({_shown([name(item) for item in left])}), but on none of them alone: "
                    f"lower engine.max_num_seqs or engine.max_num_batched_tokens in runtime.yaml; the last failure: {outcome}"
                )
            out += [name(left[index]) for index in poisonous]
            left = [item for index, item in enumerate(left) if index not in poisonous]

    def _attempt(self, items: list[Item], run: Callable[[list[Item]], Result], name: Callable[[Item], str]) -> Result | EngineFailure:
        try:
            result = run(items)
        except EngineFailure as failure:
            self._in_a_row += 1
            names = _shown([name(item) for item in items])
            if self._in_a_row > self._max_restarts:
                raise EngineFailure(
                    f"the engine failed {self._in_a_row} times in a row, engine.max_restarts={self._max_restarts} in runtime.yaml allows "
                    f"{self._max_restarts}; last on {len(items)} samples ({names}): {failure}"
                ) from None
            log.warning("asked for %d samples (%s), %s", len(items), names, failure)
            return failure
        self._in_a_row = 0
        return result

    def _isolate(self, items: list[Item], run: Callable[[list[Item]], Result], name: Callable[[Item], str]) -> set[int]:
        """Indices of the items that fail by themselves, twice. Halves of a failing part are both tried before either is split further,
        so that one sample never makes more than three failures in a row."""
        found: set[int] = set()
        failing = [range(len(items))]
        while failing:
            part = failing.pop(0)
            if len(part) == 1:
                if isinstance(self._attempt([items[part.start]], run, name), EngineFailure):
                    found.add(part.start)
                    self._count(name(items[part.start]))
                continue
            middle = part.start + len(part) // 2
            for half in (range(part.start, middle), range(middle, part.stop)):
                if isinstance(self._attempt([items[index] for index in half], run, name), EngineFailure):
                    failing.append(half)
        return found

    def _count(self, name: str) -> None:
        self._poisonous.append(name)
        log.warning("sample %s makes the engine fail by itself: it is left out", name)
        if len(self._poisonous) > self._max_poisonous:
            raise DraftyardError(
                f"the engine fails on {len(self._poisonous)} samples, each by itself ({_shown(self._poisonous)}); {self._bound} allows {self._max_poisonous}: "
                "remove these prompts, or raise the bound"
            )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
