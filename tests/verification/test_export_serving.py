"""vLLM serves both layouts of the embedded draft with the same acceptance. Needs a finished build (dvc repro, or dvc pull)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "models/draft/model.safetensors").is_file(), reason="no built draft: run dvc repro, or dvc pull")
def test_both_layouts_are_served_alike(tmp_path: Path) -> None:
    from draftyard.artifacts.card import read_card
    from draftyard.artifacts.generations import read_split
    from draftyard.draft.export import export_checkpoint
    from draftyard.engines.vllm_engine import resolve_engine_args
    from draftyard.runtime import load_runtime, work_dir
    from draftyard.verification.serving import ServedPrompt, engines, measure_acceptance
    from draftyard.verifiers import materialise

    card = read_card(ROOT / "models/verifier.json")
    export_checkpoint(ROOT / "models/draft", tmp_path / "midlayer", "midlayer", embed_tokens=False)
    config = {
        "model": str(materialise(card, work_dir(ROOT))),
        "k": 3,
        "max_model_len": 1024,
        "engine_args": resolve_engine_args(card.engine_args)[0],
        "trust_remote_code": False,
    }
    prompts = [ServedPrompt(g.id, g.category, g.turns[-1].prompt_token_ids) for g in list(read_split(ROOT / "data/generations", "holdout"))[:6]]
    nested, flat = ({**config, "draft": str(path)} for path in (ROOT / "models/draft", tmp_path / "midlayer"))
    with engines(nested, flat, load_runtime(ROOT), tmp_path / "logs") as pair:
        results = []
        for engine in pair:
            assert engine.wait_ready() is None
            decoded = engine.decode([prompt.token_ids for prompt in prompts], 48)
            results.append((decoded["outputs"], measure_acceptance(prompts, decoded["rounds"], 3)))
    assert results[0] == results[1]
    assert results[0][1]["overall"]["acceptance_length"] > 1
