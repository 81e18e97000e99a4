"""A split answered through an endpoint: the template applied once, shards that are kept, and what the lineage and the resume area are told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from draftyard.artifacts.generations import read_split
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.backend import Backend, choose_backend
from draftyard.engines.endpoint_client import EndpointError
from draftyard.engines.generate import Answerer, GenerateReport, SplitPlan, generate_split, require_bounds
from draftyard.engines.recovery import Recovery
from draftyard.errors import DraftyardError
from draftyard.params.generate import GenerateParams
from draftyard.params.load import load_file
from draftyard.runtime import Runtime, load_runtime
from tests.engines import endpoint_server
from tests.engines.endpoint_server import FINGERPRINT, MODEL, Handler
from tests.tiny_verifiers import save_tokenizer, tokens

ROOT = Path(__file__).parents[2]
KEY = "sk-test-77aa01"
VARIABLE = "TEST_ENDPOINT_KEY"
PROMPTS = [Prompt(id=f"p{n}", category="chat", system=None, turns=("ab" * (n + 1), "cd") if n == 1 else ("ab" * (n + 1),)) for n in range(6)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(directory)
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture
def server(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[endpoint_server.Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(VARIABLE, KEY)
    with endpoint_server.serving(tokenizer) as running:
        yield running


def params(**changes: Any) -> GenerateParams:
    made = load_file(ROOT / "params.yaml", ("generate.engine=endpoint", f"generate.endpoint_model={MODEL}")).generate
    return dataclasses.replace(made, **{"max_new_tokens": 20, "max_model_len": 100, "max_looping_fraction": 1.0, **changes})


def runtime(url: str) -> Runtime:
    made = load_runtime(ROOT)
    endpoint = dataclasses.replace(made.endpoint, base_url=url, api_key_variable=VARIABLE, max_attempts=2, max_wait_seconds=0.01)
    return dataclasses.replace(made, endpoint=endpoint)


def backend(server: endpoint_server.Server, made: GenerateParams) -> Backend:
    card = SimpleNamespace(geometry=SimpleNamespace(vocab_size=len(tokens())))
    return choose_backend(made, runtime(server.url), card, Path(), lambda: server.tokenizer, Path())  # type: ignore[arg-type]


def generate(server: endpoint_server.Server, directory: Path, made: GenerateParams | None = None) -> tuple[int, GenerateReport]:
    made = made or params()
    report = GenerateReport()
    with backend(server, made).start() as engine:
        plan = SplitPlan(split="train", num_prompts=len(PROMPTS), samples_per_shard=2, params=made)
        resumed = generate_split(Answerer(engine, server.tokenizer, made), plan, PROMPTS, directory, recovery=Recovery(0, 0, ""), report=report)
    return resumed, report


def asked(server: endpoint_server.Server) -> list[list[int]]:
    """The prompts that reached the server, without the probe, which is the first."""
    return [body["prompt"] for body in server.asked[1:]]


def rendered(server: endpoint_server.Server, prompt: Prompt) -> list[int]:
    ids: list[int] = server.tokenizer.apply_chat_template([{"role": "user", "content": prompt.turns[0]}], return_dict=False, add_generation_prompt=True)
    return ids


def test_a_conversation_goes_out_rendered_once_and_comes_back_as_ids(server: endpoint_server.Server, tmp_path: Path) -> None:
    _, report = generate(server, tmp_path)
    found = {generation.id: generation for generation in read_split(tmp_path, "train")}
    assert list(found) == [prompt.id for prompt in PROMPTS]
    assert report.skipped == {}
    first, second = found["p1"].turns
    messages = [{"role": "user", "content": "abab"}]
    assert server.tokenizer.decode(first.prompt_token_ids) == "<s>user\nabab</s>"
    assert first.prompt_token_ids == server.tokenizer.apply_chat_template(messages, return_dict=False, add_generation_prompt=True)
    assert first.output_token_ids == [*reversed(first.prompt_token_ids), endpoint_server.END]
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "cd"}]
    assert second.prompt_token_ids == server.tokenizer.apply_chat_template(messages, return_dict=False, add_generation_prompt=True)
    assert sorted(asked(server)) == sorted(turn.prompt_token_ids for generation in found.values() for turn in generation.turns)


def test_a_server_that_fails_costs_one_shard_and_the_rest_goes_on(server: endpoint_server.Server, tmp_path: Path) -> None:
    generate(server, tmp_path / "plain")
    last, healthy = rendered(server, PROMPTS[5]), server.behave

    def fail(handler: Handler, body: dict[str, Any], attempt: int) -> None:
        handler.reply(503, {}) if body["prompt"] == last else healthy(handler, body, attempt)

    server.behave = fail
    with pytest.raises(EndpointError, match=r"status 503 .*given up after 2 attempts.*Finished shards are kept"):
        generate(server, tmp_path / "killed")
    assert [path.name for path in sorted((tmp_path / "killed").glob("*.jsonl"))] == ["train-00000.jsonl", "train-00001.jsonl"]
    server.behave = healthy
    server.asked.clear()
    resumed, _ = generate(server, tmp_path / "killed")
    assert resumed == 2
    assert len(asked(server)) == 2
    for path in sorted((tmp_path / "plain").glob("*.jsonl")):
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()


def test_a_refused_prompt_is_counted_named_and_bounded(server: endpoint_server.Server, tmp_path: Path) -> None:
    last, healthy = rendered(server, PROMPTS[5]), server.behave
    server.behave = lambda handler, body, attempt: (
        handler.reply(400, {"error": {"message": "no"}}) if body["prompt"] == last else healthy(handler, body, attempt)
    )
    _, report = generate(server, tmp_path / "refused")
    assert report.skipped == {"refused by the endpoint (status 400)": ["p5/0"]}
    assert report.conversations == 5
    require_bounds(report, params(max_skipped_fraction=0.2))
    with pytest.raises(DraftyardError, match=r"1 of 6 prompts gave no usable answer \(refused by the endpoint \(status 400\): p5/0\)"):
        require_bounds(report, params(max_skipped_fraction=0.1))


def test_the_lineage_says_who_answered_and_neither_it_nor_the_resume_area_knows_where_or_with_which_key(server: endpoint_server.Server, tmp_path: Path) -> None:
    found = backend(server, params())
    assert found.facts == {
        "dtype": "as served",
        "engine": "endpoint",
        "served_model": MODEL,
        "served_by_vllm": "0.32.0",
        "served_fingerprint": FINGERPRINT,
    }
    assert found.packages["vllm"] == "0.32.0 (endpoint)"
    assert {"served_model", "served_by_vllm", "served_fingerprint", "samples_per_shard"} == found.shaping.keys()
    generate(server, tmp_path)
    said = json.dumps([found.facts, found.packages, found.shaping]) + "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    for secret in (KEY, "127.0.0.1", server.url):
        assert secret not in said


def test_what_the_server_does_not_tell_is_said(server: endpoint_server.Server) -> None:
    server.pages["/version"] = (404, {})
    server.behave = lambda handler, body, attempt: handler.reply(200, server.completion(body) | {"system_fingerprint": None})
    found = backend(server, params())
    assert found.packages["vllm"] == "not told (endpoint)"
    assert found.facts["served_fingerprint"] == found.shaping["served_fingerprint"] == "not told"
