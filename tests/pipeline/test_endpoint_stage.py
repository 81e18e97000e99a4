"""The stage `generate` through DVC with an endpoint: what it needs, what it leaves, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftyard.artifacts.files import read_json
from draftyard.artifacts.generations import SPLITS, read_split
from tests.engines import endpoint_server
from tests.engines.endpoint_server import FINGERPRINT, MODEL
from tests.pipeline.tiny_repo import VERIFIER, make_repository, run, write_params

KEY = "sk-tiny-90b1d4"
VARIABLE = "TINY_ENDPOINT_KEY"


def files_with(root: Path, text: str) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.slow
def test_the_stage_asks_a_server_and_goes_on_after_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One build: `dvc repro` up to `generate`; the server fails in the second shard, comes back, and is asked for what is missing."""
    from transformers import AutoTokenizer

    root = make_repository(tmp_path / "repo")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(VARIABLE, KEY)
    write_params(root, generate={"engine": "endpoint", "endpoint_model": MODEL})
    with endpoint_server.serving(AutoTokenizer.from_pretrained(root / VERIFIER)) as server:
        server.pages["/v1/models"] = (200, {"data": [{"id": MODEL, "max_model_len": 1024}]})
        runtime = yaml.safe_load((root / "runtime.yaml").read_text())
        runtime["endpoint"].update(base_url=server.url, api_key_variable=VARIABLE, max_attempts=2, max_wait_seconds=0.1)
        (root / "runtime.yaml").write_text(yaml.safe_dump(runtime))
        healthy = server.behave

        def fail_late(handler: endpoint_server.Handler, body: dict[str, Any], attempt: int) -> None:
            healthy(handler, body, attempt) if len(server.asked) <= 20 else handler.reply(503, {"error": {"message": f"restarting, {KEY}"}})

        server.behave = fail_late
        failed = run(root, "dvc", "repro", "generate", check=False)
        assert failed.returncode != 0
        said = failed.stdout + failed.stderr
        assert "status 503 (restarting, ***); given up after 2 attempts" in said
        assert "Finished shards are kept" in said
        (root / VERIFIER / "model.safetensors").unlink()  # only the tokenizer is needed here
        server.behave = healthy
        server.asked.clear()
        result = run(root, "dvc", "repro", "-s", "generate")
        said += result.stdout + result.stderr
    lineage = read_json(root / "data/generations/lineage.json")
    assert {key: lineage["facts"][key] for key in ("engine", "served_model", "served_by_vllm", "served_fingerprint", "dtype")} == {
        "engine": "endpoint",
        "served_model": MODEL,
        "served_by_vllm": "0.32.0",
        "served_fingerprint": FINGERPRINT,
        "dtype": "as served",
    }
    assert lineage["packages"]["vllm"] == "0.32.0 (endpoint)"
    answered = [generation for split in SPLITS for generation in read_split(root / "data/generations", split)]
    assert all(turn.output_token_ids == [*reversed(turn.prompt_token_ids), 2][:12] for generation in answered for turn in generation.turns)
    metrics = json.loads((root / "reports/stages/generate.json").read_text())
    assert metrics["answers"] == sum(len(generation.turns) for generation in answered)
    assert len(server.asked) - 1 < metrics["answers"]  # a shard was there already
    assert KEY not in said
    assert files_with(root, KEY) == []
    assert sorted(files_with(root, server.url)) == [".work/logs/generate.log", "runtime.yaml"]
