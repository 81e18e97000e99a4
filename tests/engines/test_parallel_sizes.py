"""How the GPUs of one engine share the verifier: a pipeline only where no inner state has to leave it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from draftyard.engines.vllm_engine import parallel_sizes
from draftyard.runtime import load_runtime

ENGINE = dataclasses.replace(load_runtime(Path(__file__).parents[2]).engine, tensor_parallel_size=8, pipeline_parallel_size=2)


def test_plain_decoding_takes_the_sizes_as_written() -> None:
    assert parallel_sizes(ENGINE, aux_states=False) == {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}


def test_where_aux_states_are_needed_the_same_gpus_share_every_layer() -> None:
    assert parallel_sizes(ENGINE, aux_states=True) == {"tensor_parallel_size": 16, "pipeline_parallel_size": 1}
