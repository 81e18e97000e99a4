"""The endpoint against a real `vllm serve` on loopback: the shards equal, byte for byte, those of the engine on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.generations import read_split
from draftyard.artifacts.prompts import Prompt
from draftyard.engines.backend import choose_backend
from draftyard.engines.endpoint_client import EndpointError
from draftyard.engines.endpoint_messages import request_body
from draftyard.engines.environment import engine_environment
from draftyard.engines.generate import Answerer, GenerateReport, SplitPlan, generate_split
from draftyard.engines.recovery import Recovery
from draftyard.engines.requests import Request
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import sampling_params
from draftyard.params.generate import GenerateParams
from draftyard.params.load import load_file
from draftyard.params.verifier import VerifierParams
from draftyard.runtime import Runtime, load_runtime
from draftyard.verifiers import resolve
from tests.pipeline.tiny_repo import save_verifier

ROOT = Path(__file__).parents[2]
MAX_MODEL_LEN = 256
KEY = "sk-test-31c0de"
VARIABLE = "TEST_ENDPOINT_KEY"
START_SECONDS = 900
PROMPTS = [
    Prompt(id="one", category="chat", system=None, turns=("How do I boil an egg?",)),
    Prompt(id="two", category="chat", system="Be brief.", turns=("Name a colour.", "Another one, please.")),
    Prompt(id="three", category="chat", system=None, turns=("Grüße! Schreib mir ein Gedicht über 雨 und 🌧️.",)),
    Prompt(id="four", category="code", system=None, turns=("def add(a, b):\n    return",)),
]


@contextmanager
def vllm_serve(model: Path, port: int, runtime: Runtime, log: Path) -> Iterator[None]:
    """A server of `model` under the name "tiny", with an API key; gone at the end."""
    environment = {**engine_environment(runtime, log.with_suffix(".engine.log")), "VLLM_API_KEY": KEY}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING")  # the server's engine is a process of its own
    command = [  # `vllm serve` itself asks for the version of a distribution "vllm", which the CPU build is not
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "8", "--dtype", "float32", "--enforce-eager",
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_until_ready(process, port, log)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no server within {START_SECONDS} s: {log.read_text(errors='replace')[-4000:]}")


def generate(params: GenerateParams, runtime: Runtime, card: VerifierCard, model: Path, directory: Path, log: Path) -> tuple[dict[str, Any], GenerateReport]:
    """Answer PROMPTS greedily (holdout) and sampled (train) into shards below `directory`. Returns the facts for the lineage and the counts."""
    tokenizer = load_tokenizer(model, False)
    backend = choose_backend(params, runtime, card, model, lambda: tokenizer, log)
    report = GenerateReport()
    with backend.start() as engine:
        for split in ("holdout", "train"):
            plan = SplitPlan(split=split, num_prompts=len(PROMPTS), samples_per_shard=2, params=params)
            generate_split(Answerer(engine, tokenizer, params), plan, PROMPTS, directory, recovery=Recovery(0, 0, ""), report=report)
    return backend.facts, report


# `vllm serve` samples with these wherever a request says nothing; the engine in process does not know them.
SERVER_DEFAULTS = {"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.2, "repetition_penalty": 1.7}
GREEDY = Request(id="greedy", token_ids=[5, 6, 7], max_tokens=9)
SAMPLED = Request(id="sampled", token_ids=[5], max_tokens=9, temperature=0.8, top_p=0.95, seed=4294967295)


@pytest.mark.slow
@pytest.mark.parametrize("request_", [GREEDY, SAMPLED], ids=lambda request: request.id)
def test_vllms_own_protocol_reads_a_request_as_the_engine_in_process_would(request_: Request) -> None:
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    body = CompletionRequest(**request_body("tiny", request_))
    assert not body.model_extra  # every key is one that vLLM knows
    assert (body.prompt, body.return_token_ids) == (request_.token_ids, True)
    served = body.to_sampling_params(request_.max_tokens, SERVER_DEFAULTS)
    own = sampling_params(request_)
    differ = {name for name in own.__struct_fields__ if getattr(served, name) != getattr(own, name)}
    assert differ == {"detokenize", "output_kind", "skip_clone"}  # what comes back and how, not what is drawn


@pytest.mark.slow
@pytest.mark.engine
def test_an_endpoint_gives_the_token_ids_of_the_engine_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(VARIABLE, KEY)
    model = tmp_path / "model"
    save_verifier(model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "do_sample": True, **SERVER_DEFAULTS}))
    source = VerifierParams(source="path", name=str(model), revision=None, file=None, sha256=None, trust_remote_code=False, engine_args={"dtype": "float32"})
    card, _ = resolve(source, tmp_path / "work")
    local = dataclasses.replace(
        load_file(ROOT / "params.yaml").generate, max_new_tokens=24, holdout_max_new_tokens=32, max_model_len=MAX_MODEL_LEN, temperature=0.8, top_p=0.95,
        samples_per_prompt=2,
    )  # fmt: skip
    remote = dataclasses.replace(local, engine="endpoint", endpoint_model="tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shipped = load_runtime(ROOT)
    runtime = dataclasses.replace(
        shipped,
        engine=dataclasses.replace(shipped.engine, max_num_seqs=8, kv_cache_gib=1),
        endpoint=dataclasses.replace(shipped.endpoint, base_url=f"http://127.0.0.1:{port}/v1", api_key_variable=VARIABLE),
    )
    with vllm_serve(model, port, runtime, tmp_path / "serve.log"):
        facts, report = generate(remote, runtime, card, model, tmp_path / "remote", tmp_path / "unused.log")
        monkeypatch.setenv(VARIABLE, "another")
        with pytest.raises(EndpointError, match="status 401, the server refuses this API key"):
            generate(remote, runtime, card, model, tmp_path / "refused", tmp_path / "unused.log")
        monkeypatch.setenv(VARIABLE, KEY)
        with pytest.raises(EndpointError, match="serves 'tiny', not generate.endpoint_model='other'"):
            generate(dataclasses.replace(remote, endpoint_model="other"), runtime, card, model, tmp_path / "refused", tmp_path / "unused.log")
        with pytest.raises(EndpointError, match="sequences of 256 tokens; generate.max_model_len=257 needs more"):
            generate(dataclasses.replace(remote, max_model_len=257), runtime, card, model, tmp_path / "refused", tmp_path / "unused.log")
    assert report.skipped == {}
    assert facts["served_fingerprint"].startswith(f"vllm-{facts['served_by_vllm']}")
    _, own = generate(local, runtime, card, model, tmp_path / "local", tmp_path / "engine.log")
    assert own.skipped == {}
    for split in ("holdout", "train"):
        pairs = list(zip(read_split(tmp_path / "remote", split), read_split(tmp_path / "local", split), strict=True))
        assert [(a.id, a.sample, a.token_ids) for a, _ in pairs] == [(b.id, b.sample, b.token_ids) for _, b in pairs]
    names = sorted(path.name for path in (tmp_path / "local").glob("*.jsonl"))
    assert len(names) == 2 + 4
    for name in names:
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    assert own.to_json("") == report.to_json("")
