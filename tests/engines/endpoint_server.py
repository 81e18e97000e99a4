"""A small real HTTP server on loopback that speaks /v1/completions, and misbehaves on purpose when told to."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "verifier"
FINGERPRINT = "vllm-0.32.0-0123abcd"
END = 2
"""The end token of tests/tiny_verifiers.py."""


class Handler(BaseHTTPRequestHandler):
    """One connection. `self.server` is the Server."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.gets.append(self.path)
        status, body = self.server.pages.get(self.path, (404, {"detail": "Not Found"}))
        self.reply(status, body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(request)
            self.server.times.append(time.monotonic())
            self.server.headers.append(dict(self.headers.items()))
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
            attempt = sum(other["prompt"] == request["prompt"] for other in self.server.asked)
        try:
            self.server.behave(self, request, attempt)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client had enough
        finally:
            with self.server.lock:
                self.server.running -= 1

    def reply(self, status: int, body: Any, **headers: str) -> None:
        """A whole answer; `body` is JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.begin(status, len(content), **headers)
        self.wfile.write(content)

    def begin(self, status: int, length: int, **headers: str) -> None:
        """Status line and headers."""
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers with what `behave(handler, request, attempt)` sends; attempt counts from 1 for each prompt."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokenizer = tokenizer
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.gets: list[str] = []
        self.running = self.most = 0
        self.pages: dict[str, tuple[int, Any]] = {
            "/v1/models": (200, {"data": [{"id": MODEL, "max_model_len": 100}]}),
            "/version": (200, {"version": "0.32.0"}),
        }
        self.behave: Callable[[Handler, dict[str, Any], int], None] = lambda handler, request, attempt: handler.reply(200, self.completion(request))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def completion(self, request: dict[str, Any], **choice: Any) -> dict[str, Any]:
        """A right answer, the prompt turned round and an end token; `choice` changes its choice (None takes a key away)."""
        ids = [*reversed(request["prompt"]), END][: request["max_tokens"]]
        values = {
            "index": 0,
            "text": self.tokenizer.decode(ids, skip_special_tokens=True),
            "finish_reason": "stop" if ids[-1] == END else "length",
            "prompt_token_ids": request["prompt"],
            "token_ids": ids,
            **choice,
        }
        return {
            "object": "text_completion",
            "model": request["model"],
            "system_fingerprint": FINGERPRINT,
            "choices": [{k: v for k, v in values.items() if v is not None}],
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def stall(self) -> None:
        """Say nothing until the test is over."""
        self.released.wait(30)


@contextmanager
def serving(tokenizer: Any) -> Iterator[Server]:
    """A running Server."""
    server = Server(tokenizer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
