"""verifier.engine_args on the card: part of its digest, and of the geometry that plan, draft and canary work with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftyard.artifacts.card import VerifierCard, read_card, write_card
from draftyard.engines.canary import load_reference
from draftyard.errors import ParamError
from draftyard.params.verifier import VerifierParams
from draftyard.verifiers import resolve
from tests.tiny_verifiers import save_llama

OVERRIDES = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}, "max_position_embeddings": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("verifier")
    save_llama(directory)
    return directory


def card(model: Path, work: Path, engine_args: dict[str, Any]) -> VerifierCard:
    params = VerifierParams(source="path", name=str(model), revision=None, file=None, sha256=None, trust_remote_code=False, engine_args=engine_args)
    return resolve(params, work)[0]


@pytest.mark.parametrize("engine_args", [{"dtype": "float32"}, {"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}, {"hf_overrides": OVERRIDES}])
def test_every_option_is_on_the_card_and_changes_its_digest(engine_args: dict[str, Any], model: Path, tmp_path: Path) -> None:
    plain, changed = card(model, tmp_path / "work", {}), card(model, tmp_path / "work", engine_args)
    write_card(tmp_path / "verifier.json", changed)
    assert read_card(tmp_path / "verifier.json").engine_args == engine_args
    assert changed.digest != plain.digest
    assert changed.files == plain.files


def test_the_geometry_is_the_one_that_will_be_served(model: Path, tmp_path: Path) -> None:
    plain, changed = card(model, tmp_path, {}).geometry, card(model, tmp_path, {"hf_overrides": OVERRIDES}).geometry
    assert (plain.rope_theta, plain.max_position_embeddings) == (10000.0, 128)
    assert (changed.rope_theta, changed.max_position_embeddings) == (500.0, 512)


def test_an_override_in_the_wrong_place_stops_the_stage(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ParamError, match=r"hf_overrides\.text_config=.*: this verifier has no such part"):
        card(model, tmp_path, {"hf_overrides": {"text_config": OVERRIDES}})


def test_the_canarys_reference_has_the_overrides_too(model: Path) -> None:
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        plain, changed = (load_reference(model, False, overrides)(ids).logits for overrides in ({}, OVERRIDES))
    assert load_reference(model, False, OVERRIDES).config.max_position_embeddings == 512
    assert (plain - changed).norm() / plain.norm() > 1e-3
    assert json.loads((model / "config.json").read_text())["max_position_embeddings"] == 128  # nothing is written
