"""A child process that holds one vLLM engine and answers JSON lines: `python -m draftyard.verification.serving_worker REPLY_FD`.

The first line on standard input is the configuration, every further one a request; replies go to REPLY_FD. Two such
processes (plain and with the draft) stay up side by side, so that timings can be interleaved on one machine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from draftyard.engines.vllm_engine import RequestLoop, greedy_params, start_engine
from draftyard.errors import DraftyardError
from draftyard.interpreter import collect_rarely, leave
from draftyard.runtime import EngineRuntime


def decode(llm: Any, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Greedy answers to all prompts at once: token ids, accepted draft tokens per round and prompt, wall seconds."""
    loop = RequestLoop(llm)
    sampling = greedy_params(max_tokens)
    started = time.perf_counter()
    for number, token_ids in enumerate(prompts):
        loop.add(str(number), token_ids, sampling)
    outputs: list[list[int]] = [[] for _ in prompts]
    rounds: list[list[int]] = [[] for _ in prompts]
    for output in loop.finished():
        completion = output.outputs[0]
        number = int(output.request_id)
        outputs[number] = list(completion.token_ids)
        metrics = completion.spec_decode_metrics
        rounds[number] = list(metrics.per_step_accepted) if metrics is not None else []
    return {"outputs": outputs, "rounds": rounds, "seconds": time.perf_counter() - started}


def logit_gap(llm: Any, token_ids: list[int], first: int, second: int) -> dict[str, Any]:
    """Difference of the next token's log-probabilities (natural log) of `first` and `second` after `token_ids`; null when one is not among the 20 likeliest."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    (output,) = llm.generate([TokensPrompt(prompt_token_ids=token_ids)], SamplingParams(temperature=0.0, max_tokens=1, logprobs=20), use_tqdm=False)
    likely = output.outputs[0].logprobs[0]
    gap = likely[first].logprob - likely[second].logprob if first in likely and second in likely else None
    return {"gap": gap}


def serve(config: dict[str, Any], requests: Any, replies: Any) -> None:
    """Start the engine of `config`, say so, and answer until the input ends."""

    def reply(value: dict[str, Any]) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    extra: dict[str, Any] = {}
    if config["draft"] is not None:
        extra = {
            "speculative_config": {"model": config["draft"], "method": "eagle3", "num_speculative_tokens": config["k"]},
            "per_request_spec_decode_metrics": "detailed",
            "disable_log_stats": False,
        }
    try:
        llm = start_engine(
            Path(config["model"]),
            max_model_len=config["max_model_len"],
            runtime=EngineRuntime(**config["runtime"]),
            engine_args=config["engine_args"],
            trust_remote_code=config["trust_remote_code"],
            enable_prefix_caching=False,  # a timed prompt is prefilled every time
            **extra,
        )
    except DraftyardError as error:
        reply({"error": str(error)})
        return
    reply({"ready": True})
    for line in requests:
        request = json.loads(line)
        if request["do"] == "decode":
            reply(decode(llm, request["prompts"], request["max_tokens"]))
        else:
            reply(logit_gap(llm, request["token_ids"], request["first"], request["second"]))


if __name__ == "__main__":
    collect_rarely()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as reply_file:
        serve(json.loads(sys.stdin.readline()), sys.stdin, reply_file)
    leave()
