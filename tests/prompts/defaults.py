"""Params for tests: one jsonl source, nothing cut, no reject allowed."""

from __future__ import annotations

from typing import Any

from draftyard.params.prompts import PromptsParams


def params(**changes: Any) -> PromptsParams:
    values: dict[str, Any] = {
        "sources": ({"kind": "jsonl", "path": "data/sources/a.jsonl"},),
        "max_prompts": None,
        "category_weights": {},
        "holdout_prompts": 1,
        "near_duplicate_threshold": 0.5,
        "max_reject_fraction": 0.0,
        "seed": 0,
    }
    return PromptsParams(**values | changes)
