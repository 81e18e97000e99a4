"""docs/parameters.md is up to date, and what it is made from says something about every key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_type_hints

import pytest

from draftyard.params.docs import read_fields, render, rerun_stages
from draftyard.params.load import GROUPS
from draftyard.params.yaml_file import read_yaml
from draftyard.runtime import EndpointRuntime, EngineRuntime, Runtime, TrainRuntime

ROOT = Path(__file__).parents[2]
PIPELINE = read_yaml(ROOT / "dvc.yaml")


def test_parameters_md_is_up_to_date() -> None:
    found = (ROOT / "docs/parameters.md").read_text(encoding="utf-8")
    assert found == render(ROOT), "run: python -m draftyard.params.docs > docs/parameters.md"


@pytest.mark.parametrize("cls", [*GROUPS.values(), EngineRuntime, EndpointRuntime, TrainRuntime, Runtime])
def test_every_field_is_read_and_says_what_it_means(cls: type) -> None:
    fields = read_fields(cls)
    assert [field.name for field in fields] == [field.name for field in dataclasses.fields(cls)]
    groups = {name for name, kind in get_type_hints(cls).items() if dataclasses.is_dataclass(kind)}  # of runtime.yaml: documented key by key
    assert [field.name for field in fields if not field.meaning and field.name not in groups] == []


@pytest.mark.parametrize(
    ("key", "stages"),
    [
        ("draft.head_dim", ["train", "verify", "report", "gate"]),
        ("draft.vocab_size", ["vocab", "train", "verify", "report", "gate"]),
        ("hidden_states.aux_layer_ids", ["hidden_states", "train", "verify", "report", "gate"]),
        ("prompts.max_prompts", ["prompts", "generate", "hidden_states", "vocab", "train", "verify", "report", "gate"]),
        ("report.title", ["report", "gate"]),
        ("gate.min_acceptance_length", ["gate"]),
    ],
)
def test_stages_that_re_run(key: str, stages: list[str]) -> None:
    assert rerun_stages(PIPELINE, key) == stages
