"""vLLM serves both layouts of a built draft with the same outputs and the same accepted tokens per round."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftyard.artifacts.generations import read_split
from draftyard.draft.export import export_checkpoint
from draftyard.runtime import load_runtime
from draftyard.verification.serving import ServedPrompt, engines, measure_acceptance
from tests.pipeline.conftest import TinyBuild
from tests.pipeline.tiny_repo import VERIFIER

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def test_both_layouts_are_served_alike(tiny_build: TinyBuild, tmp_path: Path) -> None:
    root = tiny_build.root
    export_checkpoint(root / "models/draft", tmp_path / "midlayer", "midlayer", embed_tokens=False)
    config = {"model": str(root / VERIFIER), "k": 2, "max_model_len": 768, "engine_args": {"dtype": "float32"}, "trust_remote_code": False}
    prompts = [ServedPrompt(g.id, g.category, g.turns[-1].prompt_token_ids) for g in read_split(root / "data/generations", "holdout")]
    nested, flat = ({**config, "draft": str(path)} for path in (root / "models/draft", tmp_path / "midlayer"))
    with engines(nested, flat, load_runtime(root), tmp_path / "logs") as pair:
        results = []
        for engine in pair:
            assert engine.wait_ready() is None
            decoded = engine.decode([prompt.token_ids for prompt in prompts], 24)
            results.append((decoded["outputs"], decoded["rounds"], measure_acceptance(prompts, decoded["rounds"], 2)))
    assert results[0] == results[1]
    # Accepting nothing would be the same in both, too: a layout whose weights are not found drafts at 1.0.
    assert results[0][2]["overall"]["acceptance_length"] > 1
