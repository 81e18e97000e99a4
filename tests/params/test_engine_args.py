"""verifier.engine_args: options that change what the verifier computes, and nothing else, each in a form that the engine takes."""

from __future__ import annotations

from typing import Any

import pytest

from draftyard.errors import ParamError
from draftyard.params.verifier import VerifierParams

YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}


def verifier(engine_args: dict[str, Any]) -> VerifierParams:
    return VerifierParams(source="path", name="models/mine", revision=None, file=None, sha256=None, trust_remote_code=False, engine_args=engine_args)


@pytest.mark.parametrize(
    "engine_args",
    [
        {},
        {"dtype": "auto"},
        {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8"},
        {"hf_overrides": {"rope_parameters": YARN, "max_position_embeddings": 131072}},
        {"hf_overrides": {"text_config": {"rope_parameters": YARN}}},
    ],
)
def test_what_serving_may_ask_for_is_taken_as_written(engine_args: dict[str, Any]) -> None:
    assert verifier(engine_args).engine_args == engine_args


@pytest.mark.parametrize(
    ("engine_args", "message"),
    [
        ({"max_num_seqs": 4}, r"engine_args\.max_num_seqs=4: not an option that changes the verifier's results; known: dtype, quantization"),
        ({"dtype": "fp8"}, r"engine_args\.dtype='fp8': must be one of auto, bfloat16, float16, float32"),
        ({"quantization": 8}, r"engine_args\.quantization=8: must be one of vLLM's names"),
        ({"kv_cache_dtype": None}, r"engine_args\.kv_cache_dtype: must be one of vLLM's names"),
        ({"hf_overrides": "rope"}, r"hf_overrides='rope': must be a mapping"),
        ({"hf_overrides": {"num_hidden_layers": 2}}, r"hf_overrides\.num_hidden_layers=2: serving may change rope_parameters, max_position_embeddings only"),
        ({"hf_overrides": {"text_config": {"hidden_size": 8}}}, r"hf_overrides\.text_config\.hidden_size=8: serving may change"),
        ({"hf_overrides": {"text_config": 3}}, r"hf_overrides\.text_config=3: must be a mapping"),
        ({"hf_overrides": {"rope_theta": 5e5}}, r"hf_overrides\.rope_theta=500000\.0: serving may change rope_parameters, max_position_embeddings only"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}}, "must be whole, with rope_type and rope_theta"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "yarn", "rope_theta": True}}}, "must be whole"),
        ({"hf_overrides": {"max_position_embeddings": 0}}, "must be a whole number above 0"),
    ],
)
def test_what_the_engine_would_refuse_or_pass_over_is_named(engine_args: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError, match=message):
        verifier(engine_args)
