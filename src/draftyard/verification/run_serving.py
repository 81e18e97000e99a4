"""The serving part of `verify`: acceptance, equality and speed in vLLM, or the reason why this machine cannot serve it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.generations import Generation
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.hardware import machine
from draftyard.params.verify import VerifyParams
from draftyard.runtime import Runtime
from draftyard.verification.serving import EngineProcess, ServedPrompt, compare_outputs, engines, measure_acceptance, measure_speed, warm_up


@dataclasses.dataclass(frozen=True)
class Servers:
    """The verifier plain and with the draft, each in an engine of its own. facts: what holds for both."""

    plain: EngineProcess
    draft: EngineProcess
    facts: dict[str, Any]

    def wait_ready(self) -> str | None:
        """Wait for both engines. Returns None, or why the first that cannot start does not."""
        for engine in (self.plain, self.draft):
            if (reason := engine.wait_ready()) is not None:
                return reason
        return None


@contextlib.contextmanager
def servers(
    draft_dir: Path, model_dir: Path, card: VerifierCard, params: VerifyParams, runtime: Runtime, logs: Path, *, max_model_len: int
) -> Iterator[Servers]:
    """Start both engines, without waiting for them; they are ended in any case."""
    engine_args, _ = resolve_engine_args(card.engine_args)
    plain = {
        "model": str(model_dir),
        "draft": None,
        "k": params.num_speculative_tokens,
        "max_model_len": max_model_len,
        "engine_args": engine_args,
        "trust_remote_code": card.trust_remote_code,
    }
    # Both engines stay up side by side: on a GPU each gets half of the memory that runtime.yaml allows.
    half = dataclasses.replace(runtime.engine, gpu_memory_utilization=runtime.engine.gpu_memory_utilization / 2)
    with engines(plain, {**plain, "draft": str(draft_dir)}, dataclasses.replace(runtime, engine=half), logs) as pair:
        yield Servers(*pair, {"k": params.num_speculative_tokens, "dtype": engine_args["dtype"], "machine": machine()})


def run_serving(pair: Servers, model_dir: Path, card: VerifierCard, holdout: list[Generation], params: VerifyParams, *, max_tokens: int) -> dict[str, Any]:
    """Serve the holdout prompts plain and with the draft. status is "skipped", with the engine's reason, where an engine cannot start."""
    prompts = [ServedPrompt(g.id, g.category, g.turns[-1].prompt_token_ids) for g in holdout]
    result: dict[str, Any] = {**pair.facts, "max_new_tokens": max_tokens}
    reason = pair.wait_ready()
    if reason is not None:
        return {**result, "status": "skipped", "reason": reason}
    plain, draft = pair.plain, pair.draft
    warm_up(plain, draft, prompts[0])
    without = plain.decode([p.token_ids for p in prompts], max_tokens)
    with_draft = draft.decode([p.token_ids for p in prompts], max_tokens)
    tokenizer = load_tokenizer(model_dir, card.trust_remote_code)
    result.update(measure_acceptance(prompts, with_draft["rounds"], params.num_speculative_tokens))
    result["equality"] = compare_outputs(prompts, without["outputs"], with_draft["outputs"], lambda ids: str(tokenizer.decode(ids)), plain.logit_gap)
    result["speed"] = measure_speed(plain, draft, prompts[: params.speed_prompts], max_tokens, params.speed_repeats)
    return {**result, "status": "measured"}
