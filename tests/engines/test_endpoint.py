"""The endpoint against a real HTTP server that misbehaves on purpose: what is tried again, what is counted, and what ends the stage."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.engines.endpoint import EndpointEngine, Reader, Server, ask_server
from draftyard.engines.endpoint_client import EndpointError, error_message, parse_retry_after
from draftyard.engines.endpoint_messages import read_version, text_fits
from draftyard.engines.requests import Finished, Request
from draftyard.errors import DraftyardError, ParamError
from draftyard.runtime import EndpointRuntime
from tests.engines import endpoint_server
from tests.engines.endpoint_server import END, FINGERPRINT, MODEL, Handler
from tests.tiny_verifiers import MERGES, SPECIAL, tokens

VOCABULARY = len(tokens())
VARIABLE = "TEST_ENDPOINT_KEY"
PROBE = [40, 41]
ATTEMPTS = 3
TIMEOUT = 30.0
SHORT_TIMEOUT = 0.7
"""Where a server stalls."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """A byte-level BPE tokenizer; its `decode` is what the one of transformers calls."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens())}, list(MERGES)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(list(SPECIAL))
    return bpe


@pytest.fixture
def server(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[endpoint_server.Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with endpoint_server.serving(tokenizer) as running:
        yield running


def runtime(url: str, **changes: Any) -> EndpointRuntime:
    values: dict[str, Any] = {
        "base_url": url, "api_key_variable": VARIABLE, "max_in_flight": 8, "max_attempts": ATTEMPTS,
        "request_timeout_seconds": TIMEOUT, "max_wait_seconds": 0.01,
    }  # fmt: skip
    return EndpointRuntime(**{**values, **changes})


def ask(server: endpoint_server.Server, **changes: Any) -> Server:
    reader = Reader(model=MODEL, tokenizer=server.tokenizer, vocab_size=VOCABULARY)
    return ask_server(runtime(server.url, **changes), reader, max_model_len=100, probe=PROBE)


def engine(server: endpoint_server.Server, **changes: Any) -> EndpointEngine:
    reader = Reader(model=MODEL, tokenizer=server.tokenizer, vocab_size=VOCABULARY)
    return EndpointEngine(runtime(server.url, **changes), reader, Server(model=MODEL, vllm=None, fingerprint=FINGERPRINT))


def request(number: int, **changes: Any) -> Request:
    return Request(**{"id": f"p{number}/0/0", "token_ids": [50 + number, 60, 61], "max_tokens": 8, **changes})


def answers(server: endpoint_server.Server, *requests: Request, **changes: Any) -> dict[str, Finished]:
    with engine(server, **changes) as made:
        for one in requests:
            made.add(one)
        return {finished.id: finished for finished in made.finished()}


# --- what is sent and what comes back -------------------------------------------------------------------------------


def test_ids_go_out_and_ids_come_back(server: endpoint_server.Server) -> None:
    found = answers(server, request(0), request(1, max_tokens=2), request(2, temperature=0.7, top_p=0.9, seed=4294967295))
    assert found["p0/0/0"] == Finished(id="p0/0/0", token_ids=[61, 60, 50, END], finish_reason="stop")
    assert found["p1/0/0"] == Finished(id="p1/0/0", token_ids=[61, 60], finish_reason="length")
    bodies = {tuple(body["prompt"]): body for body in server.asked}
    greedy, sampled = bodies[50, 60, 61], bodies[52, 60, 61]
    assert (greedy["model"], greedy["max_tokens"], greedy["temperature"], greedy["top_p"], greedy["return_token_ids"]) == (MODEL, 8, 0.0, 1.0, True)
    assert "seed" not in greedy
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.7, 0.9, 4294967295)
    # vllm serve takes what is not said from the model's generation_config.json
    neutral = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert {key: greedy[key] for key in neutral} == neutral


def test_requests_can_be_added_while_others_finish(server: endpoint_server.Server) -> None:
    with engine(server) as made:
        made.add(request(0))
        order, counted = [], []
        for finished in made.finished(counted.append):
            order.append(finished.id)
            if len(order) < 4:
                made.add(request(len(order)))
    assert order == [f"p{n}/0/0" for n in range(4)]
    assert counted == [4] * 4


def test_a_second_batch_on_the_same_engine(server: endpoint_server.Server) -> None:
    with engine(server) as made:
        for batch in ([0, 1], [2]):
            for number in batch:
                made.add(request(number))
            assert sorted(finished.id for finished in made.finished()) == [f"p{n}/0/0" for n in batch]


def test_no_more_requests_at_a_time_than_allowed(server: endpoint_server.Server) -> None:
    def slow(handler: Handler, body: dict[str, Any], attempt: int) -> None:
        time.sleep(0.05)
        handler.reply(200, server.completion(body))

    server.behave = slow
    found = answers(server, *(request(n) for n in range(12)), max_in_flight=3, request_timeout_seconds=10.0)
    assert len(found) == 12
    assert server.most == 3


# --- failures of the way: tried again, then the end of the stage ----------------------------------------------------


def cut(handler: Handler) -> None:
    """Half an answer of known length, then the connection is closed."""
    handler.begin(200, 1000)
    handler.wfile.write(b'{"model": "verifier", "choices": [{"text": ')
    handler.close_connection = True


def cut_without_length(handler: Handler) -> None:
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"model": "verifier", "choices": [')
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """Never silent for long, and never done."""
    handler.begin(200, 1000)
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def drip_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not handler.server.released.wait(0.02):
        handler.wfile.write(b"X: y\r\n")
        handler.wfile.flush()


def hang_up(handler: Handler) -> None:
    handler.close_connection = True


def babble(handler: Handler) -> None:
    handler.wfile.write(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
    handler.close_connection = True


BOMB = gzip.compress(b" " * 10_000_000)
WAY: dict[str, tuple[Callable[[Handler], None], str]] = {
    "429": (lambda h: h.reply(429, {"error": {"message": "slow down"}}, Retry_After="0"), r"status 429 \(slow down\)"),
    "500": (lambda h: h.reply(500, b"Internal Server Error"), r"status 500 \(Internal Server Error\)"),
    "503": (lambda h: h.reply(503, {"object": "error", "message": "still loading"}), r"status 503 \(still loading\)"),
    "stall": (lambda h: h.server.stall(), "no whole answer within 0.7 s"),
    "drip": (drip, "no whole answer within 0.7 s"),
    "dripping headers": (drip_headers, "no whole answer within 0.7 s|header"),
    "closed in the body": (cut, "ClientPayloadError: .*not completed"),
    "closed in a body of unknown length": (cut_without_length, 'the answer is no JSON object but \'{"model"'),
    "closed at once": (hang_up, "ServerDisconnectedError"),
    "no HTTP": (babble, "Bad"),
    "a page": (lambda h: h.reply(200, b"<html>gateway</html>"), "the answer is no JSON object but '<html>gateway</html>'"),
    "garbage": (lambda h: h.reply(200, bytes(range(256))), "the answer is no JSON object"),
    "deep JSON": (lambda h: h.reply(200, b"[" * 100_000), "the answer is no JSON object"),
    "a list": (lambda h: h.reply(200, [1]), "the answer is no JSON object but '\\[1\\]'"),
    "too long": (lambda h: h.reply(200, b" " * (3 << 20)), "the answer is longer than 1049280 bytes"),
    "compressed": (lambda h: h.reply(200, BOMB, Content_Encoding="gzip"), "the answer is no JSON object"),
}


STALLS = ("stall", "drip", "dripping headers")


@pytest.mark.parametrize("name", WAY)
def test_a_failure_of_the_way_is_tried_again(name: str, server: endpoint_server.Server) -> None:
    fail, _ = WAY[name]
    server.behave = lambda handler, body, attempt: fail(handler) if attempt == 1 else handler.reply(200, server.completion(body))
    patient = {"request_timeout_seconds": SHORT_TIMEOUT, "max_attempts": 20} if name in STALLS else {}
    found = answers(server, request(0), request(1), **patient)
    assert {name: finished.token_ids for name, finished in found.items()} == {"p0/0/0": [61, 60, 50, END], "p1/0/0": [61, 60, 51, END]}
    assert len(server.asked) == 4 or (name in STALLS and len(server.asked) > 4)  # a right answer can be too late as well, on a busy machine


@pytest.mark.parametrize("name", WAY)
def test_a_failure_that_stays_ends_the_stage_within_bounds(name: str, server: endpoint_server.Server) -> None:
    fail, message = WAY[name]
    server.behave = lambda handler, body, attempt: fail(handler)
    started = time.monotonic()
    with pytest.raises(EndpointError, match=rf"/v1/completions: .*({message}).*given up after 3 attempts.*max_attempts.*Finished shards are kept"):
        answers(server, request(0), request_timeout_seconds=SHORT_TIMEOUT if name in STALLS else TIMEOUT)
    assert len(server.asked) == ATTEMPTS or (name in STALLS and len(server.asked) < ATTEMPTS)  # too late already when it connects, on a busy machine
    assert time.monotonic() - started < TIMEOUT


def test_one_that_gives_up_does_not_wait_for_the_others(server: endpoint_server.Server) -> None:
    def behave(handler: Handler, body: dict[str, Any], attempt: int) -> None:
        if body["prompt"] == [50, 60, 61]:
            handler.reply(500, {})
        else:
            server.stall()

    server.behave = behave
    started = time.monotonic()
    with pytest.raises(EndpointError, match="status 500"):
        answers(server, *(request(n) for n in range(5)), request_timeout_seconds=25.0)
    assert time.monotonic() - started < 10


def test_nobody_listens(server: endpoint_server.Server) -> None:
    server.server_close()
    with pytest.raises(EndpointError, match=rf"{server.url}/models: ClientConnectorError: .*given up after 3 attempts"):
        ask(server)


def test_retry_after_is_kept(server: endpoint_server.Server) -> None:
    server.behave = lambda handler, body, attempt: handler.reply(429, {}, Retry_After="1") if attempt == 1 else handler.reply(200, server.completion(body))
    answers(server, request(0), max_wait_seconds=5.0)
    assert server.times[-1] - server.times[-2] >= 1.0


def test_a_retry_after_beyond_the_bound_ends_the_stage_at_once(server: endpoint_server.Server) -> None:
    server.behave = lambda handler, body, attempt: handler.reply(503, {}, Retry_After=formatdate(time.time() + 3600, usegmt=True))
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"status 503.*asks to wait 3[56]\d\d s; endpoint.max_wait_seconds=5 allows less"):
        answers(server, request(0), max_wait_seconds=5.0)
    assert len(server.asked) == 1
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("9" * 400, None),
        ("", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, 100.0) == seconds


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_error_body_can_be_shown(content: bytes) -> None:
    assert isinstance(error_message(content), str)


# --- answers that will not do: tried again, then counted ------------------------------------------------------------

UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "other ids than the text": ({"token_ids": [50, 51, END]}, "its text .* is not what its token ids mean"),
    "no text": ({"text": None}, "its text None"),
    "an id beyond the vocabulary": ({"token_ids": [VOCABULARY, END]}, f"ids? or more below {VOCABULARY}"),
    "a negative id": ({"token_ids": [-1, END]}, "token_ids must be"),
    "an id that is a text": ({"token_ids": ["50", END]}, "token_ids must be"),
    "an id that is true": ({"token_ids": [True, END]}, "token_ids must be"),
    "no token at all": ({"token_ids": []}, "token_ids must be"),
    "no finish reason": ({"finish_reason": None}, "finish_reason must be one of stop, length, found None"),
    "aborted": ({"finish_reason": "abort"}, "found 'abort'"),
    "cut before its length": ({"finish_reason": "length"}, "4 tokens and finish_reason length do not fit max_tokens=8"),
    "longer than asked": ({"token_ids": [50] * 9, "text": "S" * 9}, "9 tokens and finish_reason stop do not fit max_tokens=8"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_answer_is_tried_again_then_counted(name: str, server: endpoint_server.Server, caplog: pytest.LogCaptureFixture) -> None:
    change, message = UNUSABLE[name]
    wrong = {(50, 60, 61): ATTEMPTS, (51, 60, 61): 1}  # prompt -> attempts that go wrong

    def behave(handler: Handler, body: dict[str, Any], attempt: int) -> None:
        handler.reply(200, server.completion(body, **(change if attempt <= wrong.get(tuple(body["prompt"]), 0) else {})))

    server.behave = behave
    with caplog.at_level(logging.WARNING):
        found = answers(server, request(0), request(1), request(2))
    assert found["p0/0/0"] == Finished(id="p0/0/0", token_ids=[], finish_reason="", failure="unusable answer from the endpoint")
    assert [found[f"p{n}/0/0"].token_ids for n in (1, 2)] == [[61, 60, 51, END], [61, 60, 52, END]]
    assert len(server.asked) == 3 + 2 + 1
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("p0/0/0")]
    assert line.startswith("p0/0/0: unusable answer from the endpoint: ")
    assert line.endswith("(3 attempts)")
    assert re.search(message, line)


@pytest.mark.parametrize("choices", [None, [], {}, [1], [{}, {}]])
def test_choices_that_are_not_one(choices: Any, server: endpoint_server.Server) -> None:
    server.behave = lambda handler, body, attempt: handler.reply(200, server.completion(body) | {"choices": choices})
    assert answers(server, request(0))["p0/0/0"].failure == "unusable answer from the endpoint"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_counted_and_not_tried_again(status: int, server: endpoint_server.Server) -> None:
    def behave(handler: Handler, body: dict[str, Any], attempt: int) -> None:
        refused = body["prompt"] == [50, 60, 61]
        handler.reply(status if refused else 200, {"error": {"message": "too long", "code": 400}} if refused else server.completion(body))

    server.behave = behave
    found = answers(server, request(0), request(1))
    assert found["p0/0/0"].failure == f"refused by the endpoint (status {status})"
    assert found["p1/0/0"].failure is None
    assert len(server.asked) == 2


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12))
def test_a_text_fits_the_ids_that_it_was_decoded_from(ids: list[int], tokenizer: Any) -> None:
    """Random byte tokens: nearly all of them break characters in the middle."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text_fits(text, ids, tokenizer)
    assert text_fits(f" {text.rstrip(chr(0xFFFD))}", ids, tokenizer)  # a server that sees a blank before it, and holds back half a character
    assert text_fits(tokenizer.decode(ids[:-1], skip_special_tokens=True), ids, tokenizer)  # the last one was an end token to the server
    assert not text_fits(f"{text}x", ids, tokenizer)


# --- servers that are not the one that is needed --------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no ids of the answer": ({"token_ids": None}, "returns no token ids .*not exact.*vLLM 0.10.2 or later"),
    "no ids of the prompt": ({"prompt_token_ids": None}, "returns no token ids"),
    "a token before the prompt": ({"prompt_token_ids": [1, 50, 60, 61]}, r"3 sent, 4 read, the first difference at 0 \(\[50, 60, 61\] sent, \[1, 50, 60, 61\] read\)"),
    "a prompt that was cut": ({"prompt_token_ids": [50, 60]}, r"3 sent, 2 read, the first difference at 2 \(\[61\] sent, \[\] read\)"),
    "a prompt that is a text": ({"prompt_token_ids": "abc"}, "no list but 'abc'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_server_that_reads_or_returns_other_ids_is_refused_at_once(name: str, server: endpoint_server.Server) -> None:
    change, message = WRONG[name]
    server.behave = lambda handler, body, attempt: handler.reply(200, server.completion(body, **change))
    with pytest.raises(EndpointError, match=message):
        answers(server, request(0))
    assert len(server.asked) == 1


def test_another_model_that_answers_is_refused(server: endpoint_server.Server) -> None:
    server.behave = lambda handler, body, attempt: handler.reply(200, server.completion(body) | {"model": "other"})
    with pytest.raises(EndpointError, match="let 'other' answer where generate.endpoint_model='verifier' was asked"):
        answers(server, request(0))


def test_a_server_that_changes_under_way_is_refused(server: endpoint_server.Server) -> None:
    """The same name, but started anew with another quantisation: its fingerprint tells."""
    server.behave = lambda handler, body, attempt: handler.reply(
        200, server.completion(body) | ({} if body["prompt"][0] == 50 else {"system_fingerprint": "b"})
    )
    with engine(server, max_in_flight=1) as made:
        made.add(request(0))
        made.add(request(1))
        finished = made.finished()
        assert next(finished).id == "p0/0/0"
        with pytest.raises(EndpointError, match=rf"system_fingerprint was {FINGERPRINT} and is b now"):
            next(finished)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, r"status 404 \(no such page\); endpoint.base_url"),
        (405, "status 405"),
        (301, "status 301"),
        (401, "status 401.*set the environment variable TEST_"),
    ],
)
def test_a_status_that_no_retry_mends(status: int, message: str, server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    server.behave = lambda handler, body, attempt: handler.reply(status, b"no such page", Location=f"{server.url}/elsewhere")
    with pytest.raises(EndpointError, match=message):
        answers(server, request(0))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, "serves 'a', 'b', not generate.endpoint_model='verifier'"),
        ({"data": []}, "serves no model, not"),
        ({"data": [{"id": MODEL, "max_model_len": 99}]}, "sequences of 99 tokens; generate.max_model_len=100 needs more: start it with --max-model-len 100"),
        ({"data": "x"}, "the list of models is 'x'.*endpoint.base_url"),
        ({"data": [{"name": "x"}]}, "the list of models is"),
        (b"<html>", "/v1/models: the answer is no JSON object but '<html>'; given up after 3 attempts"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_before_a_prompt_is_sent(page: Any, message: str, server: endpoint_server.Server) -> None:
    server.pages["/v1/models"] = (200, page)
    with pytest.raises(EndpointError, match=message):
        ask(server)
    assert server.asked == []


def test_a_probe_without_an_answer_refuses_the_server(server: endpoint_server.Server) -> None:
    server.behave = lambda handler, body, attempt: handler.reply(200, server.completion(body, text="?"))
    with pytest.raises(EndpointError, match="'verifier' does not answer a prompt of 2 token ids as needed: its text '\\?' is not what"):
        ask(server)
    assert len(server.asked) == ATTEMPTS


def test_the_server_says_what_it_is(server: endpoint_server.Server) -> None:
    assert ask(server) == Server(model=MODEL, vllm="0.32.0", fingerprint=FINGERPRINT)
    assert server.gets == ["/v1/models", "/version"]
    server.pages["/v1/models"] = (200, {"data": [{"id": MODEL}]})
    for page in ((404, {}), (401, {}), (200, {"version": "/home/me/vllm build 7"}), (200, {"version": 3})):
        server.pages["/version"] = page
        assert ask(server) == Server(model=MODEL, vllm=None, fingerprint=FINGERPRINT)
    server.pages["/version"] = (503, {})  # not "no version": the lineage must not depend on the moment
    with pytest.raises(EndpointError, match="/version: status 503.*given up"):
        ask(server)


@pytest.mark.parametrize("content", [b"", b"1", b'{"version": "1\\n2"}', b'{"version": ""}', b"\xff"])
def test_what_is_no_version(content: bytes) -> None:
    assert read_version(content) is None


# --- the key --------------------------------------------------------------------------------------------------------

KEY = "sk-test-5f2e9b"


def test_the_key_goes_into_a_header_and_nowhere_else(server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    server.behave = lambda handler, body, attempt: handler.reply(500 if attempt < 3 else 401, f"bad key '{KEY}'".encode())
    with caplog.at_level(logging.DEBUG), pytest.raises(EndpointError, match=r"refuses this API key \(bad key '\*\*\*'\); look at the key") as caught:
        answers(server, request(0))
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY not in json.dumps(server.asked)
    assert KEY not in caplog.text + str(caught.value) + repr(caught.getrepr(showlocals=False))


@pytest.mark.parametrize("variable", [None, VARIABLE])
def test_without_a_key_no_header_is_sent(variable: str | None, server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    answers(server, request(0), api_key_variable=variable)
    assert not any("Authorization" in headers for headers in server.headers)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "schlüssel"])
def test_what_is_no_key_is_refused_without_showing_it(key: str, server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, key)
    with pytest.raises(ParamError, match=rf"\${VARIABLE}: holds no API key") as caught:
        ask(server)
    assert key not in str(caught.value)
    assert isinstance(caught.value, DraftyardError)


def test_a_url_that_is_none() -> None:
    with pytest.raises(EndpointError, match="http://a b/v1/models"):
        ask_server(runtime("http://a b/v1"), Reader(model=MODEL, tokenizer=None, vocab_size=9), max_model_len=9, probe=PROBE)


def test_a_server_that_repeats_the_key_in_a_page_does_not_get_it_into_the_log(
    server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    server.behave = lambda handler, body, attempt: handler.reply(200, f"<p>{KEY}</p>".encode())
    with caplog.at_level(logging.DEBUG), pytest.raises(EndpointError, match=r"<p>\*\*\*</p>") as caught:
        answers(server, request(0))
    assert KEY not in caplog.text + str(caught.value)


def test_netrc_is_not_read(server: endpoint_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for key in ("", KEY):
        monkeypatch.setenv(VARIABLE, key)
        server.headers.clear()
        answers(server, request(0))
        assert [headers.get("Authorization") for headers in server.headers] == [f"Bearer {key}" if key else None]


def test_a_proxy_of_the_environment_is_used(server: endpoint_server.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    for page in ("/v1/models", "/version"):
        server.pages[f"http://verifier.invalid{page}"] = server.pages[page]
    reader = Reader(model=MODEL, tokenizer=server.tokenizer, vocab_size=VOCABULARY)
    ask_server(runtime("http://verifier.invalid/v1"), reader, max_model_len=100, probe=PROBE)
    assert server.gets == ["http://verifier.invalid/v1/models", "http://verifier.invalid/version"]


def test_an_interrupt_leaves_nothing_behind(server: endpoint_server.Server, caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C while requests are under way: the stage ends at once, and asyncio has nothing to complain about."""
    server.behave = lambda handler, body, attempt: os.kill(os.getpid(), signal.SIGINT) if body["prompt"][0] == 50 else server.stall()
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
        answers(server, request(1), request(0))
    gc.collect()
    assert time.monotonic() - started < 10
    assert caplog.text == ""


def test_nothing_is_written(server: endpoint_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, KEY)
    answers(server, request(0))
    assert list(tmp_path.rglob("*")) == []
