"""vLLM in this process: starting it for plain decoding, drafting or extraction, and running requests to the end."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from draftyard.engines.cpu import cpu_options, runs_on_cpu
from draftyard.engines.requests import EngineFailure, Finished, Request
from draftyard.errors import DraftyardError
from draftyard.runtime import EngineRuntime

DRAIN_SECONDS = 120.0
LAST_SENTENCE_CHARACTERS = 500
CONNECTOR = ("HiddenStatesConnector", "draftyard.engines.connector")


def start_engine(
    model_dir: Path, *, max_model_len: int, runtime: EngineRuntime, engine_args: dict[str, Any], trust_remote_code: bool = False, **extra: Any
) -> Any:
    """Start a vllm.LLM on `model_dir`. `engine_args` are the verifier's (dtype resolved); `extra` goes to LLM as it is.

    Raises DraftyardError with the engine's own last sentence when it cannot start.
    """
    from vllm import LLM

    try:
        return LLM(
            str(model_dir),
            max_model_len=max_model_len,
            max_num_seqs=runtime.max_num_seqs,
            max_num_batched_tokens=max(runtime.max_num_batched_tokens, 16),
            gpu_memory_utilization=runtime.gpu_memory_utilization,
            **parallel_sizes(runtime, aux_states="speculative_config" in extra),
            enable_expert_parallel=runtime.enable_expert_parallel,
            trust_remote_code=trust_remote_code,
            language_model_only=True,  # prompts are text: no memory for a multimodal verifier's encoders
            **{"disable_log_stats": True, **cpu_options(model_dir), **engine_args, **extra},
        )
    except Exception as error:
        traceback.print_exc()  # to the engine's log, where the message sends its reader
        text = str(error).strip()
        last = text.splitlines()[-1][:LAST_SENTENCE_CHARACTERS] if text else type(error).__name__
        raise DraftyardError(f"vLLM could not start on {model_dir.name}: {last}; the engine's log is in logs/ of the work area") from error


def parallel_sizes(runtime: EngineRuntime, *, aux_states: bool) -> dict[str, int]:
    """How the GPUs of one engine share the verifier. aux_states: whether the engine hands on states of inner layers (extraction, drafting).

    vLLM 0.32 keeps such states on the rank that computed them and reads them on the last (its models' forward, gpu_model_runner.py),
    so with a pipeline those of the first groups would be missing: the same GPUs then share every layer.
    """
    if aux_states:
        return {"tensor_parallel_size": runtime.tensor_parallel_size * runtime.pipeline_parallel_size, "pipeline_parallel_size": 1}
    return {"tensor_parallel_size": runtime.tensor_parallel_size, "pipeline_parallel_size": runtime.pipeline_parallel_size}


def start_extraction_engine(
    model_dir: Path,
    aux_layer_ids: tuple[int, ...],
    num_layers: int,
    storage: Path,
    *,
    max_model_len: int,
    runtime: EngineRuntime,
    engine_args: dict[str, Any],
    trust_remote_code: bool = False,
) -> Any:
    """Start an engine whose requests leave the states of `aux_layer_ids` and of the last layer in `storage`.

    Prefix caching is off: with it, states come out shorter than the prompt. Such an engine must not generate text.
    """
    name, module = CONNECTOR
    ids = [*aux_layer_ids, num_layers]
    return start_engine(
        model_dir,
        max_model_len=max_model_len,
        runtime=runtime,
        engine_args=engine_args,
        trust_remote_code=trust_remote_code,
        enable_prefix_caching=False,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
        },
        kv_transfer_config={
            "kv_connector": name,
            "kv_connector_module_path": module,
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(storage)},
        },
    )


def greedy_params(max_tokens: int) -> Any:
    """Sampling parameters of greedy decoding up to `max_tokens` tokens, returning token ids only."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)


class RequestLoop:
    """Runs requests on an engine with continuous batching; finished ones come out as they finish, and more can be added meanwhile."""

    def __init__(self, llm: Any) -> None:
        self._engine = llm.llm_engine

    def add(self, request_id: str, token_ids: list[int], sampling: Any) -> None:
        """Queue one request of prompt `token_ids`."""
        from vllm.inputs import TokensPrompt

        self._engine.add_request(request_id, TokensPrompt(prompt_token_ids=token_ids), sampling)

    def steps(self) -> Iterator[tuple[int, list[Any]]]:
        """Step until nothing is left; yields the number of new tokens and the finished RequestOutputs of each step."""
        counted: dict[str, int] = {}
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            new = 0
            for output in outputs:
                length = len(output.outputs[0].token_ids)
                new += length - counted.get(output.request_id, 0)
                counted[output.request_id] = length
            done = [output for output in outputs if output.finished]
            for output in done:
                counted.pop(output.request_id, None)
            yield new, done

    def finished(self, on_step: Callable[[int], None] | None = None, drain: Callable[[], bool] | None = None) -> Iterator[Any]:
        """Step until nothing is left; yields each finished RequestOutput.

        on_step gets the number of new tokens of a step. drain: while it returns True after the last request, the engine is
        stepped on (what a connector does after a request needs steps too) and None is yielded each time.
        Raises EngineFailure when draining makes no end within DRAIN_SECONDS.
        """
        for new, done in self.steps():
            if on_step is not None:
                on_step(new)
            yield from done
        deadline = time.monotonic() + DRAIN_SECONDS
        while drain is not None and drain():
            if time.monotonic() > deadline:
                raise EngineFailure(f"the engine did not hand over its last results within {DRAIN_SECONDS:.0f} s; its log is in logs/ of the work area")
            self._engine.engine_core.get_output()
            yield None
            time.sleep(0.002)


class LocalEngine:
    """The protocol `Engine` (see requests.py) on a started vllm.LLM in this process."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._loop = RequestLoop(llm)
        self._fresh = True

    def add(self, request: Request) -> None:
        """See requests.Engine."""
        if self._fresh:
            self._fresh = False
            self._llm.reset_prefix_cache()  # a prefix cached by an earlier batch would change how this one is computed
        self._loop.add(request.id, request.token_ids, sampling_params(request))

    def steps(self) -> Iterator[tuple[int, list[Finished]]]:
        """Step until nothing is left; yields the number of new tokens and what finished in each step."""
        for new, outputs in self._loop.steps():
            yield (
                new,
                [
                    Finished(id=output.request_id, token_ids=list(output.outputs[0].token_ids), finish_reason=str(output.outputs[0].finish_reason))
                    for output in outputs
                ],
            )
        self._fresh = True

    def finished(self, on_step: Callable[[int], None] | None = None) -> Iterator[Finished]:
        """See requests.Engine."""
        for new, done in self.steps():
            if on_step is not None:
                on_step(new)
            yield from done


def sampling_params(request: Request) -> Any:
    """vLLM's form of a request's sampling; only token ids come back."""
    from vllm import SamplingParams

    return SamplingParams(temperature=request.temperature, top_p=request.top_p, max_tokens=request.max_tokens, seed=request.seed, detokenize=False)


def resolve_engine_args(engine_args: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The verifier's engine args with `dtype: auto` resolved for this machine, and the reason for the choice."""
    from draftyard.hardware import choose_compute_dtype

    resolved = dict(engine_args)
    if resolved.get("dtype", "auto") == "auto":
        dtype, reason = choose_compute_dtype("cpu" if runs_on_cpu() else "cuda")
        resolved["dtype"] = dtype
        return resolved, reason
    return resolved, "verifier.engine_args.dtype"
