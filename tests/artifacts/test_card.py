"""models/verifier.json: what it holds, and that a damaged one is refused by key and rule."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from draftyard.artifacts.card import FileDigest, VerifierCard, read_card, write_card
from draftyard.draft.geometry import VerifierGeometry
from draftyard.errors import ArtifactError


def a_card(**changes: Any) -> VerifierCard:
    geometry = VerifierGeometry(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=263,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
    )
    values: dict[str, Any] = {
        "source": "pypi-gguf",
        "name": "tiny-model",
        "revision": "1.0",
        "gguf": ("tiny.gguf", "a" * 64),
        "trust_remote_code": False,
        "engine_args": {},
        "files": {"config.json": FileDigest(10, "b" * 64), "model.safetensors": FileDigest(1000, "c" * 64)},
        "geometry": geometry,
        "tokenizer_digest": "d" * 64,
        "chat_template_digest": None,
        "num_parameters": 500,
        "dtype": "bfloat16",
    }
    return VerifierCard(**{**values, **changes})


def test_a_card_is_read_as_it_was_written(tmp_path):
    write_card(tmp_path / "verifier.json", a_card())
    assert read_card(tmp_path / "verifier.json") == a_card()
    assert a_card().weights_bytes == 1000


def test_the_digest_is_that_of_the_canonical_json_on_disk(tmp_path):
    write_card(tmp_path / "verifier.json", a_card())
    values = json.loads((tmp_path / "verifier.json").read_text())
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    assert a_card().digest == hashlib.sha256(text.encode()).hexdigest()
    assert a_card(engine_args={"dtype": "float32"}).digest != a_card().digest


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("format", 2, "format 2, expected 1"),
        ("source", "ftp", "must be one of"),
        ("name", "", "must be a text"),
        ("revision", 3, "must be a text or null"),
        ("gguf", None, "belongs to source pypi-gguf"),
        ("gguf", {"file": "x.gguf", "sha256": "short"}, "must hold file and sha256"),
        ("trust_remote_code", "no", "must be true or false"),
        ("num_parameters", 0, "must be a positive whole number"),
        ("num_parameters", True, "must be a positive whole number"),
        ("tokenizer_digest", "A" * 64, "must be 64 hex digits"),
        ("files", {"../config.json": {"size": 1, "sha256": "a" * 64}}, "must be a plain file name"),
        ("files", {"config.json": {"size": -1, "sha256": "a" * 64}}, "with size and sha256"),
        ("files", {"model.safetensors": {"size": 1, "sha256": "a" * 64}}, "must list config.json"),
        ("geometry", {}, "are missing or unknown"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_damaged_card_names_the_key_and_the_rule(tmp_path, key, value, rule):
    path = tmp_path / "verifier.json"
    path.write_text(json.dumps({**a_card().to_json(), key: value}))
    with pytest.raises(ArtifactError, match=r"dvc repro|rebuild") as error:
        read_card(path)
    assert str(path) in str(error.value)
    assert rule in str(error.value)


def test_a_missing_card_says_which_stage_to_run(tmp_path):
    with pytest.raises(ArtifactError, match="no such file; run the stage that makes it"):
        read_card(tmp_path / "verifier.json")
