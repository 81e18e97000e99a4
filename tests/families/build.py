"""The stages `verifier` to `verify` on one miniature verifier, in this process and without DVC.

Each stage's own main runs on the params that DVC would give it. What DVC adds is tested in tests/pipeline.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from draftyard.runtime import load_runtime
from draftyard.stage import StageContext
from tests.families.verifiers import FAMILIES, save_family
from tests.pipeline.tiny_repo import ROOT, tiny_params, write_runtime

STAGES = ("verifier", "prompts", "generate", "hidden_states", "vocab", "train", "verify")
TOPICS = ("a hidden harbour", "an old clock", "the sum of 12 and 30", "rain in spring", "a slow train", "two red apples", "the last page", "a quiet street")
PROMPTS = [f"Write a line about {topic}{end}" for topic in TOPICS for end in (".", " and what came after it.")]


def family_params(name: str, verifier: Path) -> dict[str, dict[str, Any]]:
    """Params of a build of seconds: 16 short prompts, answers of 12 tokens, one epoch."""
    family = FAMILIES[name]
    return tiny_params(
        verifier={"name": str(verifier), "engine_args": {"dtype": "float32", **family.engine_args}},
        prompts={
            "sources": [{"kind": "jsonl", "path": "data/sources/lines.jsonl", "category": "lines"}],
            "max_prompts": len(PROMPTS), "holdout_prompts": 3, "near_duplicate_threshold": 1.0, "category_weights": {},
        },
        generate={"max_model_len": 128},
        hidden_states={"aux_layer_ids": list(family.aux_layer_ids), "canary_min_agreement": 1.0, "canary_max_difference": family.tolerance},
        draft={"head_dim": 32, **family.draft},
        train={"init_from_verifier_layer": None, **family.train},
        verify={"speed_prompts": 1},
    )  # fmt: skip


def build_family(root: Path, name: str) -> None:
    """Write the verifier, the prompts and runtime.yaml to `root`, then run every stage there on the whole of the params; engines are children."""
    root.mkdir(parents=True)
    save_family(FAMILIES[name], root / "verifier")
    (root / "data/sources").mkdir(parents=True)
    (root / "data/sources/lines.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    write_runtime(root)
    shutil.copy2(ROOT / "dvc.yaml", root)  # which modules a stage's unfinished work depends on
    shutil.copytree(ROOT / "stages", root / "stages")
    context = StageContext("verifier", root, family_params(name, root / "verifier"), load_runtime(root), root / ".work")
    for stage in STAGES:
        load_stage(stage).main(dataclasses.replace(context, name=stage))


@cache
def load_stage(name: str) -> Any:
    """The module stages/<name>.py."""
    spec = importlib.util.spec_from_file_location(f"stage_{name}", ROOT / "stages" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
