"""The verifier behind an OpenAI-compatible endpoint: exact token ids in, exact token ids out, every answer checked.

The chat template is applied once, by the caller; the server gets the prompt as ids (/v1/completions takes a list of them) and is asked for
the ids that it read and wrote (`return_token_ids`, vLLM 0.10.2 and later). A server that does not return ids is refused: a text does not tell which
tokens it was written as, and a draft that learns from other tokens than those served learns wrongly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from draftyard.engines.endpoint_client import EndpointClient, EndpointError, GaveUp, SampleError
from draftyard.engines.endpoint_messages import Completion, read_completion, read_models, read_version, request_body
from draftyard.engines.requests import Finished, Request
from draftyard.runtime import EndpointRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

PROBE_TOKENS = 2
BYTES_PER_TOKEN = 64
"""More than an id and its text take in JSON; bounds what is read of an answer."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """What the endpoint says about itself, for the lineage; None where it does not tell (a gateway, or another engine behind the same protocol).

    vllm: its version. fingerprint: of its configuration; vLLM 0.32 makes it of its version, the parallel sizes and a digest of
    model, dtype, quantisation and most other options (vllm/entrypoints/serve/utils/fingerprint.py).
    """

    model: str
    vllm: str | None
    fingerprint: str | None


@dataclass(frozen=True, kw_only=True)
class Reader:
    """What an answer is held against. model: the name under which the server serves the verifier. vocab_size: the verifier's."""

    model: str
    tokenizer: Any
    vocab_size: int


async def _complete(client: EndpointClient, base: str, request: Request, reader: Reader) -> Completion:
    def read(content: bytes) -> Completion:
        return read_completion(content, request, model=reader.model, vocab_size=reader.vocab_size, tokenizer=reader.tokenizer)

    max_bytes = (1 << 20) + BYTES_PER_TOKEN * (len(request.token_ids) + request.max_tokens)
    return await client.call(f"{base}/completions", read, body=request_body(reader.model, request), max_bytes=max_bytes)


def ask_server(runtime: EndpointRuntime, reader: Reader, *, max_model_len: int, probe: list[int]) -> Server:
    """Ask the endpoint what it serves and for the answer to `probe`, any short prompt.

    Raises EndpointError when it cannot be reached, does not serve the model, or not with sequences of `max_model_len` tokens,
    or does not answer with exact ids.
    """

    async def ask() -> Server:
        client, base = EndpointClient(runtime), runtime.base_url
        try:
            await _require_model(client, base, reader.model, max_model_len)
            version = await _version(client, base)
            answer = await _complete(client, base, Request(id="probe", token_ids=probe, max_tokens=PROBE_TOKENS), reader)
            return Server(model=reader.model, vllm=version, fingerprint=answer.fingerprint)
        except SampleError as error:
            raise EndpointError(f"{base}: the model {reader.model!r} does not answer a prompt of {len(probe)} token ids as needed: {error}") from None
        finally:
            await client.close()

    loop = asyncio.new_event_loop()
    try:
        return _wait(loop, ask())
    finally:
        loop.close()


async def _require_model(client: EndpointClient, base: str, model: str, max_model_len: int) -> None:
    try:
        limits = await client.call(f"{base}/models", read_models)
    except SampleError as error:
        raise EndpointError(f"{base}/models: {error}; endpoint.base_url in runtime.yaml must lead to an OpenAI-compatible API") from None
    if model not in limits:
        raise EndpointError(
            f"{base} serves {', '.join(map(repr, sorted(limits))) or 'no model'}, not generate.endpoint_model={model!r}; "
            "name the one that is the verifier, or set endpoint.base_url in runtime.yaml"
        )
    limit = limits[model]
    if limit is not None and limit < max_model_len:
        raise EndpointError(
            f"{base} serves {model!r} with sequences of {limit} tokens; generate.max_model_len={max_model_len} needs more: "
            f"start it with --max-model-len {max_model_len}, or lower generate.max_model_len"
        )


async def _version(client: EndpointClient, base: str) -> str | None:
    try:
        return await client.call(f"{base.removesuffix('/v1')}/version", read_version)
    except GaveUp:  # what the lineage says must not depend on the moment
        raise
    except (EndpointError, SampleError):
        return None  # no such page


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A signal that the stage handles ends the wait and is then raised again, outside of the loop.

    Raised where it arrives, in the middle of any task, Ctrl-C can swallow the step in which that task would have ended; closing would wait for it forever.
    """
    task, caught = loop.create_task(work), list[int]()

    def interrupt(number: int) -> None:
        caught.append(number)
        task.cancel()

    handlers = {number: handler for number in (signal.SIGINT, signal.SIGTERM) if callable(handler := signal.getsignal(number))}
    for number in handlers:
        loop.add_signal_handler(number, interrupt, number)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            return loop.run_until_complete(task)
    finally:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])
    raise AssertionError("a handler of the stage raises")


class EndpointEngine:
    """Answers requests (see requests.Engine) through the server that `ask_server` found. Use as a context manager.

    The event loop runs only while `finished` waits: nothing here is concurrent with the caller. `finished` raises EndpointError when the server
    can no longer be used, or is another one than it was: answers of two verifiers must not meet.
    """

    def __init__(self, runtime: EndpointRuntime, reader: Reader, server: Server) -> None:
        self._runtime, self._reader, self._server = runtime, reader, server
        self._loop = asyncio.new_event_loop()
        self._client: EndpointClient | None = None
        self._results: asyncio.Queue[Finished | Exception] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        """The event loop itself holds tasks weakly."""
        self._open = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.run_until_complete(self._close())
        self._loop.close()

    def add(self, request: Request) -> None:
        """See requests.Engine. The request is sent while `finished` is being iterated."""
        task = self._loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._open += 1

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """See requests.Engine. One step is one answer; a request without a usable answer comes with its `failure`."""
        while self._open:
            result = _wait(self._loop, self._results.get())
            self._open -= 1
            if isinstance(result, Exception):
                raise result
            if on_step is not None:
                on_step(len(result.token_ids))
            yield result

    async def _close(self) -> None:
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._client is not None:
            if self._client.retries:
                log.info("failed attempts: %s", "; ".join(f"{number} x {what}" for what, number in self._client.retries.most_common(5)))
            await self._client.close()

    async def _run(self, request: Request) -> None:
        result: Finished | Exception
        try:
            result = await self._answer(request)
        except SampleError as error:
            log.warning("%s: %s: %s", request.id, error.reason, error)
            result = Finished(id=request.id, token_ids=[], finish_reason="", failure=error.reason)
        except Exception as error:
            result = error
        self._results.put_nowait(result)

    async def _answer(self, request: Request) -> Finished:
        if self._client is None:  # made in the event loop that uses it
            self._client = EndpointClient(self._runtime)
        answer = await _complete(self._client, self._runtime.base_url, request, self._reader)
        if answer.fingerprint != self._server.fingerprint:
            raise EndpointError(
                f"{self._runtime.base_url}: the server's system_fingerprint was {self._server.fingerprint} and is {answer.fingerprint} now: it was started "
                "anew with other options, or several servers answer that are not alike. Serve the verifier in one way, then run dvc repro again"
            )
        return Finished(id=request.id, token_ids=answer.token_ids, finish_reason=answer.finish_reason)
