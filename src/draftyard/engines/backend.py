"""Who answers in `generate`: a vLLM on this machine, or an endpoint; and what the lineage and the resume area must know of either."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import VerifierCard
from draftyard.artifacts.lineage import package_versions
from draftyard.engines.requests import Engine
from draftyard.params.generate import GenerateParams
from draftyard.runtime import Runtime

log = logging.getLogger(__name__)
PROBE_TEXT = "What is a draft?"
AS_SERVED = "as served"
NOT_TOLD = "not told"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """start: gives the engine, a context manager. dtype: it computes in. packages, facts: for the lineage. shaping: what shards depend on besides.

    config: with executor ray, of the cluster's engines (cluster/workers.py); the engine of `start` starts only when it is asked then.
    """

    start: Callable[[], AbstractContextManager[Engine]]
    dtype: str
    packages: dict[str, str]
    facts: dict[str, Any]
    shaping: dict[str, Any]
    config: dict[str, Any] | None = None


def choose_backend(params: GenerateParams, runtime: Runtime, card: VerifierCard, model_dir: Path, tokenizer: Callable[[], Any], log_file: Path) -> Backend:
    """The backend that generate.engine names. An endpoint is asked who it is; raises EndpointError when it does not fit."""
    if params.engine == "endpoint":
        return _endpoint(params, runtime, card, tokenizer())
    return _local(params, runtime, card, model_dir, log_file)


def _local(params: GenerateParams, runtime: Runtime, card: VerifierCard, model_dir: Path, log_file: Path) -> Backend:
    from draftyard.engines.answering import AnsweringEngine
    from draftyard.engines.vllm_engine import resolve_engine_args

    engine_args, reason = resolve_engine_args(card.engine_args)
    dtype = engine_args["dtype"]
    log.info("dtype %s (%s)", dtype, reason)
    config = {"model": str(model_dir), "max_model_len": params.max_model_len, "engine_args": engine_args, "trust_remote_code": card.trust_remote_code}
    engine, on_cluster = AnsweringEngine(config, runtime, log_file), runtime.executor == "ray"
    return Backend(
        start=lambda: nullcontext(engine) if on_cluster else engine,
        dtype=dtype,
        packages=package_versions("vllm", "transformers", "torch", "tokenizers"),
        facts={"dtype": dtype},
        shaping={"dtype": dtype, "engine": runtime.engine.batching(), "threads": runtime.num_threads()},
        config=config if on_cluster else None,
    )


def _endpoint(params: GenerateParams, runtime: Runtime, card: VerifierCard, tokenizer: Any) -> Backend:
    """Neither the lineage nor the resume area knows the URL: the same server may move."""
    from draftyard.engines.endpoint import EndpointEngine, Reader, ask_server

    reader = Reader(model=params.endpoint_model or "", tokenizer=tokenizer, vocab_size=card.geometry.vocab_size)
    probe = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    server = ask_server(runtime.endpoint, reader, max_model_len=params.max_model_len, probe=probe)
    told = {"served_model": server.model, "served_by_vllm": server.vllm or NOT_TOLD, "served_fingerprint": server.fingerprint or NOT_TOLD}
    log.info("%s serves %r (vLLM %s, fingerprint %s)", runtime.endpoint.base_url, *told.values())
    return Backend(
        start=lambda: EndpointEngine(runtime.endpoint, reader, server),
        dtype=AS_SERVED,
        packages={**package_versions("transformers", "tokenizers"), "vllm": f"{told['served_by_vllm']} (endpoint)"},
        facts={"dtype": AS_SERVED, "engine": "endpoint", **told},
        shaping={**told, "samples_per_shard": runtime.engine.samples_per_shard},
    )
