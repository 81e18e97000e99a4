"""A real vLLM that is killed in the middle of a shard: the next one answers the shard again, with the same bytes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.prompts import Prompt
from draftyard.engines.answering import AnsweringEngine
from draftyard.engines.generate import Answerer, GenerateReport, SplitPlan, generate_split
from draftyard.engines.recovery import Recovery
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.errors import DraftyardError
from draftyard.runtime import load_runtime
from tests.engines.test_generate import params
from tests.pipeline.tiny_repo import save_verifier, write_runtime

pytestmark = [pytest.mark.slow, pytest.mark.engine]

PROMPTS = [Prompt(id=f"p{number}", category="chat", system=None, turns=(f"Count to {number}.", "And back?")[: 1 + number % 2]) for number in range(12)]
PARAMS = params(max_new_tokens=24, max_model_len=256, temperature=0.8, max_looping_fraction=1.0)


class Killer(AnsweringEngine):
    """Kills its child with SIGKILL after a number of steps, once."""

    def __init__(self, *arguments: Any, steps: int) -> None:
        super().__init__(*arguments)
        self.left = steps

    def finished(self, on_step: Any = None) -> Any:
        def count(new: int) -> None:
            self.left -= 1
            if self.left == 0:
                assert self._worker is not None
                os.kill(self._worker.pid, signal.SIGKILL)
            if on_step is not None:
                on_step(new)

        yield from super().finished(count)


def settings(model: Path) -> dict[str, Any]:
    return {"model": str(model), "max_model_len": 256, "engine_args": {"dtype": "float32"}, "trust_remote_code": False}


def answer(engine: AnsweringEngine, model: Path, out: Path) -> list[bytes]:
    plan = SplitPlan(split="train", num_prompts=len(PROMPTS), samples_per_shard=6, params=PARAMS)
    report = GenerateReport()
    answerer = Answerer(engine, load_tokenizer(model, False), PARAMS)
    generate_split(answerer, plan, iter(PROMPTS), out, recovery=Recovery(2, 0, "generate.max_skipped_fraction=0.0"), report=report)
    assert report.skipped == {}
    assert report.conversations == len(PROMPTS)
    return [path.read_bytes() for path in sorted(out.glob("*.jsonl"))]


def test_a_child_killed_in_the_middle_of_a_shard_costs_that_shard_and_changes_no_byte(tmp_path: Path) -> None:
    """One engine answers everything; of two others, one is killed in its second shard and the other makes that shard as its first."""
    save_verifier(tmp_path / "model")
    write_runtime(tmp_path)
    runtime = load_runtime(tmp_path)
    config = settings(tmp_path / "model")
    with Killer(config, runtime, tmp_path / "engine.log", steps=0) as engine:
        plain = answer(engine, tmp_path / "model", tmp_path / "plain")
        steps = -engine.left
    assert len(plain) == 2
    with Killer(config, runtime, tmp_path / "engine.log", steps=3 * steps // 4) as engine:
        assert answer(engine, tmp_path / "model", tmp_path / "killed") == plain
        assert engine.starts == 2


def test_an_engine_that_cannot_start_says_why_and_its_log_says_where(tmp_path: Path) -> None:
    save_verifier(tmp_path / "verifier")
    path = tmp_path / "verifier/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["NoSuchModel"]}))
    write_runtime(tmp_path)
    log = tmp_path / "engine.log"
    with (
        pytest.raises(DraftyardError, match=r"vLLM could not start on verifier: .+ logs/") as caught,
        AnsweringEngine(settings(tmp_path / "verifier"), load_runtime(tmp_path), log) as engine,
    ):
        answer(engine, tmp_path / "verifier", tmp_path / "out")
    assert len(str(caught.value)) < 1000
    assert "Traceback" in log.read_text()
