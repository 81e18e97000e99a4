"""HTTP to an OpenAI-compatible server within bounds: one attempt, its retries, and what ends them.

Two kinds of failure leave this module. `EndpointError` ends the stage: the server cannot be reached, or it is not the one that was asked for.
`SampleError` concerns one request: the server refuses it, or answers it with what cannot be used.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import logging
import os
import random
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from draftyard.errors import DraftyardError, ParamError
from draftyard.runtime import EndpointRuntime

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_WAIT_SECONDS = 1.0
"""Before the second attempt; doubles from attempt to attempt up to endpoint.max_wait_seconds."""
CONNECT_SECONDS = 10.0
SAID_CHARACTERS = 200
"""Of a server's own words in an error."""
LOG_INTERVAL_SECONDS = 15.0
REFUSED_STATUS = (400, 413, 422)
"""The server understood where the request goes and does not take this one. A second attempt would be refused too."""
RETRY_STATUS = (408, 425, 429)
"""Beside all of 500..599."""


class EndpointError(DraftyardError):
    """The endpoint cannot be used; no further request will help."""


class GaveUp(EndpointError):
    """No attempt got through."""


class SampleError(Exception):
    """One request has no usable answer. `reason` is a short phrase to count by, str() the details."""

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(details)
        self.reason = reason


class Again(Exception):
    """An attempt that another may mend. retry_after: seconds that the server asks to wait."""

    def __init__(self, what: str, retry_after: float | None = None) -> None:
        super().__init__(what)
        self.retry_after = retry_after


class UnusableError(Exception):
    """An answer came through, but it is not what was asked for; another attempt may bring it."""


class EndpointClient:
    """Requests to one server. Not for several event loops; close it in the loop that used it.

    The API key comes from the environment and goes into one header: no error, log or file holds it.
    """

    def __init__(self, runtime: EndpointRuntime) -> None:
        import aiohttp

        self._runtime = runtime
        self._key = read_api_key(runtime)
        self._slots = asyncio.Semaphore(runtime.max_in_flight)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=runtime.max_in_flight),
            timeout=aiohttp.ClientTimeout(total=runtime.request_timeout_seconds, sock_connect=CONNECT_SECONDS),
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {self._key}"} if self._key else {})},
            auto_decompress=False,  # a few bytes from a stranger must not become gigabytes
            proxy=proxy_from_environment(runtime.base_url),  # and not trust_env, which would also send what ~/.netrc says of the host
        )
        self.retries: Counter[str] = Counter()
        self._logged = -LOG_INTERVAL_SECONDS

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    async def call(self, url: str, read: Callable[[bytes], T], *, body: dict[str, Any] | None = None, max_bytes: int = 1 << 20) -> T:
        """POST `body` (GET without one) until `read` accepts the answer's bytes; returns what it makes of them.

        `read` raises Again or UnusableError when it will not do. At most endpoint.max_in_flight calls run at a time, and each takes at most
        endpoint.max_attempts x (request_timeout_seconds + max_wait_seconds); a request that waits keeps its place, which also takes load off
        a server that asks for less.

        Raises:
            GaveUp: no attempt got through.
            EndpointError: the server asks for a longer wait than allowed, or it refuses us (key, URL, model).
            SampleError: the server refuses this request, or no attempt brought a usable answer.
        """
        async with self._slots:
            failure: Exception | None = None
            for attempt in range(1, self._runtime.max_attempts + 1):
                if failure is not None:
                    await asyncio.sleep(self._wait(failure, attempt - 1))
                try:
                    return read(await self._attempt(url, body, max_bytes))
                except (Again, UnusableError) as error:
                    failure = error
                    self._note(error)
            tries = f"{self._runtime.max_attempts} attempts" if self._runtime.max_attempts > 1 else "1 attempt"
            if isinstance(failure, UnusableError):
                raise SampleError("unusable answer from the endpoint", f"{failure} ({tries})")
            raise GaveUp(
                f"{url}: {failure}; given up after {tries} (endpoint.max_attempts in runtime.yaml). Finished shards are kept: "
                "look at the server, lower endpoint.max_in_flight if it is overloaded, then run dvc repro again"
            )

    async def _attempt(self, url: str, body: dict[str, Any] | None, max_bytes: int) -> bytes:
        """One request. Returns the body of a 2xx answer, at most `max_bytes` of it."""
        import aiohttp

        try:
            async with self._session.request("GET" if body is None else "POST", url, json=body, allow_redirects=False) as response:
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > max_bytes:
                        response.close()
                        raise Again(f"the answer is longer than {max_bytes} bytes")
                if not 200 <= response.status < 300:
                    self._raise_for_status(url, response.status, response.headers, bytes(content))
                return self._without_key(bytes(content))
        except TimeoutError as error:  # also aiohttp's own
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            limit = CONNECT_SECONDS if connecting else self._runtime.request_timeout_seconds
            raise Again(f"no {'connection' if connecting else 'whole answer'} within {limit:g} s") from None
        except aiohttp.InvalidURL:
            raise EndpointError(f"{url}: is no URL; set endpoint.base_url in runtime.yaml") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise EndpointError(f"{url}: its certificate is not trusted: {self._said(str(error))}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # refused, reset, closed in the middle of the body, no HTTP at all
            raise Again(f"{type(error).__name__}: {self._said(str(error))}") from None

    def _raise_for_status(self, url: str, status: int, headers: Any, content: bytes) -> None:
        said = self._said(error_message(content))
        if status in RETRY_STATUS or status >= 500:
            raise Again(f"status {status}{said and f' ({said})'}", parse_retry_after(headers.get("Retry-After"), time.time()))
        if status in (401, 403):
            name = self._runtime.api_key_variable
            how = f"set the environment variable {name}" if name and not self._key else "look at the key in its environment variable" if name else ""
            raise EndpointError(f"{url}: status {status}, the server refuses this API key ({said}); {how or 'name its variable in endpoint.api_key_variable'}")
        if status in REFUSED_STATUS:
            raise SampleError(f"refused by the endpoint (status {status})", said)
        raise EndpointError(
            f"{url}: status {status} ({said}); endpoint.base_url in runtime.yaml must lead to an OpenAI-compatible API, such as http://host:8000/v1"
        )

    def _wait(self, failure: Exception, failed: int) -> float:
        """Seconds before the next attempt: exponential with jitter, never less than the server asks for."""
        longest = self._runtime.max_wait_seconds
        asked = failure.retry_after if isinstance(failure, Again) else None
        if asked is not None and asked > longest:
            raise EndpointError(
                f"{self._runtime.base_url}: {failure}, and asks to wait {asked:.0f} s; endpoint.max_wait_seconds={longest:g} allows less. "
                "Finished shards are kept: run dvc repro again later"
            )
        wait = min(longest, FIRST_WAIT_SECONDS * 2.0 ** min(failed - 1, 30)) * random.uniform(0.5, 1.0)
        return wait if asked is None else asked + wait / 2  # not all at the same moment

    def _said(self, text: str) -> str:
        """A server's words for an error: one line, bounded."""
        text = self._without_key(text.encode()).decode()
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:SAID_CHARACTERS]

    def _without_key(self, content: bytes) -> bytes:
        """What a server sent, without the key, which some servers repeat: parts of it can end in an error or a log."""
        return content.replace(self._key.encode(), b"***") if self._key else content

    def _note(self, failure: Exception) -> None:
        self.retries[str(failure)[:SAID_CHARACTERS]] += 1
        now = time.monotonic()
        if now - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = now
            log.warning("%s; %d attempts have failed so far", failure, self.retries.total())


def read_api_key(runtime: EndpointRuntime) -> str | None:
    """The key in the environment variable endpoint.api_key_variable, if there is one. Raises ParamError, without showing it, when it is no key."""
    key = os.environ.get(runtime.api_key_variable or "", "").strip()
    if key and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ParamError(f"${runtime.api_key_variable}", None, "holds no API key: it must be printable ASCII without blanks (its value is not shown)")
    return key or None


def proxy_from_environment(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY name for `url`, unless NO_PROXY excepts its host."""
    parts = urlsplit(url)
    if urllib.request.proxy_bypass_environment(parts.netloc):  # type: ignore[attr-defined]
        return None
    proxies = urllib.request.getproxies_environment()
    return proxies.get(parts.scheme) or proxies.get("all")


def parse_retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait from a Retry-After header, which holds seconds or a date (RFC 9110, section 10.2.3). None when it holds neither."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):  # a fraction is no standard, but is sent
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def error_message(content: bytes) -> str:
    """What the body of an error says: `error.message` as OpenAI and vLLM write it, else its beginning."""
    text = content[:4096].decode("utf-8", "replace")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return text
    error = values.get("error", values) if isinstance(values, dict) else values
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else text
