"""The picture of the build: edges from outputs and deps, no shortcuts, and current in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftyard.errors import DraftyardError
from draftyard.graph import BEGIN, END, draw_into, edges, mermaid, without_shortcuts
from draftyard.params.yaml_file import read_yaml

ROOT = Path(__file__).parents[1]
STAGES: dict[str, Any] = {
    "cook": {"deps": ["cook.py"], "outs": ["soup"], "metrics": [{"reports/cook.json": {"cache": False}}]},
    "taste": {"deps": ["soup/salt.txt", "reports/cook.json"], "metrics": ["reports/taste.json"]},
    "serve": {"deps": ["reports/taste.json", "soup"], "plots": [{"reports/guests.csv": {"x": "hour"}}]},
}


def test_an_edge_is_an_output_that_another_stage_reads() -> None:
    assert edges(STAGES) == {
        ("cook", "taste"): ["soup", "reports/cook.json"],
        ("cook", "serve"): ["soup"],
        ("taste", "serve"): ["reports/taste.json"],
    }


def test_an_edge_that_follows_from_others_is_left_out() -> None:
    assert list(without_shortcuts(edges(STAGES))) == [("cook", "taste"), ("taste", "serve")]


def test_the_picture_names_outputs_and_records_only_where_there_is_nothing_else() -> None:
    assert mermaid(STAGES) == 'graph TD\n    cook -->|"soup"| taste\n    taste -->|"reports/taste.json"| serve'


def test_the_picture_replaces_what_stood_between_the_marks() -> None:
    drawn = draw_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", STAGES, "page.md")
    assert drawn == f"before\n{BEGIN}\n```mermaid\n{mermaid(STAGES)}\n```\n{END}\nafter\n"
    with pytest.raises(DraftyardError, match=r"^page\.md: must hold"):
        draw_into("no marks", STAGES, "page.md")


def test_the_picture_in_the_docs_is_current() -> None:
    page = ROOT / "docs/how-it-works.md"
    text = page.read_text(encoding="utf-8")
    assert draw_into(text, read_yaml(ROOT / "dvc.yaml")["stages"], page.name) == text, "python -m draftyard.graph docs/how-it-works.md"
