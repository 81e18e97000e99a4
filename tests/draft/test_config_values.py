"""A config as the engine sees it under hf_overrides: what older configs say beside an override no longer holds."""

from __future__ import annotations

from typing import Any

import pytest

from draftyard.draft.config_values import with_overrides
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ParamError

TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512,
    "max_position_embeddings": 1024, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
ROPE = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}, "max_position_embeddings": 4096}


def test_no_override_changes_nothing() -> None:
    assert with_overrides(TEXT, {}) == TEXT


def test_an_override_replaces_the_rope_of_an_older_config() -> None:
    seen = with_overrides(TEXT, ROPE)
    geometry = VerifierGeometry.from_config(seen)
    assert (geometry.rope_theta, geometry.max_position_embeddings) == (1e6, 4096)
    assert "rope_scaling" not in seen
    assert TEXT["rope_theta"] == 500000.0  # the original is left alone


def test_a_multimodal_verifier_takes_them_inside_text_config() -> None:
    config = {"model_type": "vision", "text_config": TEXT}
    geometry = VerifierGeometry.from_config(with_overrides(config, {"text_config": ROPE}))
    assert (geometry.rope_theta, geometry.max_position_embeddings) == (1e6, 4096)
    with pytest.raises(ParamError, match=r"hf_overrides\.rope_parameters=.*this verifier keeps it in text_config: write hf_overrides: \{text_config: "):
        with_overrides(config, ROPE)


def test_a_plain_verifier_has_no_text_config() -> None:
    with pytest.raises(ParamError, match="this verifier has no such part: write its keys directly"):
        with_overrides(TEXT, {"text_config": ROPE})
