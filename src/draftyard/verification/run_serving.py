"""The serving part of `verify`: acceptance, equality and speed in vLLM, or the reason why this machine cannot serve it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.generations import Generation
from draftyard.engines.tokenizer import load_tokenizer
from draftyard.engines.vllm_engine import resolve_engine_args
from draftyard.hardware import machine
from draftyard.params.verify import VerifyParams
from draftyard.runtime import Runtime
from draftyard.verification.serving import ServedPrompt, compare_outputs, engines, measure_acceptance, measure_speed, warm_up


def run_serving(
    draft_dir: Path,
    model_dir: Path,
    card: VerifierCard,
    holdout: list[Generation],
    params: VerifyParams,
    runtime: Runtime,
    logs: Path,
    *,
    max_tokens: int,
    max_model_len: int,
) -> dict[str, Any]:
    """Serve the holdout prompts plain and with the draft. status is "skipped", with the engine's reason, where an engine cannot start."""
    prompts = [ServedPrompt(g.id, g.category, g.turns[-1].prompt_token_ids) for g in holdout]
    engine_args, _ = resolve_engine_args(card.engine_args)
    plain_config = {
        "model": str(model_dir),
        "draft": None,
        "k": params.num_speculative_tokens,
        "max_model_len": max_model_len,
        "engine_args": engine_args,
        "trust_remote_code": card.trust_remote_code,
    }
    result: dict[str, Any] = {"k": params.num_speculative_tokens, "dtype": engine_args["dtype"], "max_new_tokens": max_tokens, "machine": machine()}
    # Both engines stay up side by side: on a GPU each gets half of the memory that runtime.yaml allows.
    half = dataclasses.replace(runtime.engine, gpu_memory_utilization=runtime.engine.gpu_memory_utilization / 2)
    runtime = dataclasses.replace(runtime, engine=half)
    with engines(plain_config, {**plain_config, "draft": str(draft_dir)}, runtime, logs) as (plain, draft):
        for engine in (plain, draft):
            reason = engine.wait_ready()
            if reason is not None:
                return {**result, "status": "skipped", "reason": reason}
        warm_up(plain, draft, prompts[0])
        without = plain.decode([p.token_ids for p in prompts], max_tokens)
        with_draft = draft.decode([p.token_ids for p in prompts], max_tokens)
        tokenizer = load_tokenizer(model_dir, card.trust_remote_code)
        result.update(measure_acceptance(prompts, with_draft["rounds"], params.num_speculative_tokens))
        result["equality"] = compare_outputs(prompts, without["outputs"], with_draft["outputs"], lambda ids: str(tokenizer.decode(ids)), plain.logit_gap)
        result["speed"] = measure_speed(plain, draft, prompts[: params.speed_prompts], max_tokens, params.speed_repeats)
    return {**result, "status": "measured"}
