"""What an engine that answers prompts must offer, whatever runs behind it: a vLLM in a child process, in this one, or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from draftyard.errors import DraftyardError


@dataclass(frozen=True, kw_only=True)
class Request:
    """One answer to be made. token_ids: the prompt, template applied. max_tokens: of the answer. seed: None for greedy decoding (temperature 0)."""

    id: str
    token_ids: list[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The answer to the request `id`. token_ids: what the verifier wrote, its end token included. finish_reason: stop or length.

    failure: why this one request has no answer, a phrase to count by; then token_ids is empty.
    """

    id: str
    token_ids: list[int]
    finish_reason: str
    failure: str | None = None


class EngineFailure(DraftyardError):
    """The engine died, hung or gave up in the middle of its requests. Asking again may help; another engine answers from then on."""


class Engine(Protocol):
    """Answers requests with continuous batching; finished ones come out as they finish, and more can be added meanwhile.

    The order in which requests are added decides the batches. One batch of requests is everything between the first `add`
    and the end of `finished`; what it answers must not depend on the batches before it.
    """

    def add(self, request: Request) -> None:
        """Queue one request; while `finished` is being iterated as well (the next turn of a conversation)."""

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """Answer until nothing is left, yielding each answer once. on_step gets the number of new tokens, step by step.

        Raises EngineFailure when the engine is lost; the requests of the batch are then forgotten, and the next `add` starts a new one.
        """
