"""report.html: self-contained, well-formed, deterministic, and proof against strangers' texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.reporting.inputs import COMPARISON, HTML, MARKDOWN, METRICS
from draftyard.reporting.markup import VOID, join, tag
from tests.reporting.conftest import add_samples, params, write_all

Edit = Callable[[str, Callable[[Any], Any]], None]
PARAMS = params(title="A <draft> & its report")
SERVING, SIMULATION, TRAIN = "reports/verify/serving.json", "reports/verify/simulation.json", "reports/stages/train.json"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><!-- --></style></svg>]]>\ud800\x00\u202e\u2028`|\n# h"


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on a tag that is not closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.comments: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert [name] == self.open[-1:], f"</{name}> closes nothing"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def report(root: Path) -> str:
    return write_all(root, PARAMS)


def assert_harmless(text: str) -> Page:
    page = Page(text)
    for name, attributes in page.elements:
        assert name not in {"script", "img", "iframe", "object", "link", "base", "form", "foreignobject"}
        assert not any(key.startswith("on") or key in ("src", "srcset", "data") for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert page.comments == []
    return page


def poisoned(values: Any) -> Any:
    """`values` with every text but the words that choose a form of the report replaced by a hostile one, keys included where they are data."""
    if isinstance(values, dict):
        return {
            (f"{key}{HOSTILE}" if key in ("chat", "code") else key): value if key in ("status", "artifact", "digest", "files") else poisoned(value)
            for key, value in values.items()
        }
    if isinstance(values, list):
        return [poisoned(value) for value in values]
    return HOSTILE if isinstance(values, str) else values


def test_one_file_without_network_or_script(root: Path) -> None:
    text = report(root)
    assert_harmless(text)
    assert "url(" not in text
    assert "@import" not in text
    assert "http://" not in text
    assert "https://" not in text


def test_everything_the_issue_asks_for_is_shown_in_order(root: Path) -> None:
    page = Page(report(root))
    wanted = [
        "ready to serve",
        "The gate",
        "No line is red: 7 of 7 are green.",
        "It serves",
        "It learned",
        "Its vocabulary map is right",
        "Acceptance",
        "translation",
        "Speed",
        "Equality of outputs",
        "writing-0311",
    ]
    wanted += ["head_dim = 128", "9 × 128 = 1,152", "layers.0.self_attn.q_proj.weight", "1152 × 1152", "97.02%", "␣Nebula", "Loss over optimizer steps"]
    wanted += ["the answer is 16 of 29 tokens", "Along the context", "Lineage", "74da5812170f", "Environment", "2.13.0+cpu"]
    position = 0
    for text in wanted:
        assert text in page.text[position:], f"{text!r} is missing, or too early"
        position = page.text.index(text, position)


def test_each_figure_has_a_text_alternative(root: Path) -> None:
    page = Page(report(root))
    drawings = [attributes for name, attributes in page.elements if name == "svg"]
    assert len(drawings) >= 15
    assert all(drawing.get("aria-label") or drawing.get("aria-hidden") == "true" for drawing in drawings)
    assert any("position" in (drawing.get("aria-label") or "") for drawing in drawings)


def test_ids_are_unique_and_every_link_arrives(root: Path) -> None:
    page = Page(report(root))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"] for name, attributes in page.elements if name == "a"} <= {f"#{found}" for found in ids}


def test_the_same_records_give_the_same_bytes(root: Path) -> None:
    files = (HTML, MARKDOWN, METRICS, COMPARISON)
    report(root)
    first = {name: (root / name).read_bytes() for name in files}
    report(root)
    assert first == {name: (root / name).read_bytes() for name in files}
    assert not any(str(root).encode() in content for content in first.values())


def test_hostile_texts_everywhere_stay_texts(root: Path, edit: Edit) -> None:
    edit(SERVING, add_samples)
    write_all(root)
    (root / "data/baselines").mkdir()
    (root / "data/baselines/x.json").write_bytes((root / METRICS).read_bytes())
    files = [path for path in root.rglob("*.json") if path.name != "verifier.json" or path.parent.name == "stages"]
    for path in files:
        path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    page = assert_harmless(write_all(root, params(title=HOSTILE, baseline="data/baselines/x.json")))
    assert "<script>alert(1)</script>" in page.text
    assert "\x00" not in page.text
    assert "\u202e" not in page.text
    markdown = (root / MARKDOWN).read_text(encoding="utf-8")
    assert re.search(r"<(?!/?(details|summary)>)", markdown) is None
    assert "\n# h" not in markdown


def test_a_template_mistake_is_visible_in_the_sample(root: Path, edit: Edit) -> None:
    edit("reports/stages/train.json", lambda values: [row.update(loss=True) for row in values["loss_mask_sample"]] and None)
    assert '<mark><b class="template">&lt;|im_start|&gt;</b>system' in report(root)


def test_each_part_of_the_sample_shows_what_it_counts(root: Path, edit: Edit) -> None:
    runs = [("<|im_start|>user\nHi", False, 0.25, 5), ("Hello<|im_end|>", True, 1.0, 2), ("\n", False, 0.0, 1)]
    edit(TRAIN, lambda values: values.update(loss_mask_sample=[dict(zip(("text", "loss", "weight", "tokens"), run, strict=True)) for run in runs]))
    text = report(root)
    assert 'class="prompt"><b class="template">&lt;|im_start|&gt;</b>user\nHi</span><mark>Hello<b class="template">&lt;|im_end|&gt;</b></mark>' in text
    assert "the answer is 2 of 8 tokens" in text
    assert "counts 0.25× at the first step" in text
    assert "carries no loss" in text


def test_red_lines_come_first_and_say_what_to_do(root: Path) -> None:
    page = Page(write_all(root, min_holdout_coverage=0.99, min_acceptance_length=1.9))
    assert "2 of 7 lines are red: acceptance length, holdout coverage. The build fails." in page.text
    order = [page.text.index(words, page.text.index("required")) for words in ("acceptance length", "holdout coverage", "static checks", "canary")]
    assert order == sorted(order)
    assert "raise draft.vocab_size" in page.text


def test_a_divergence_is_aligned_word_by_word(root: Path) -> None:
    text = report(root)
    assert '<span class="pair apart"><mark class="differs">nobody</mark><mark class="differs">no </mark></span>' in text
    assert text.count('<span class="pair"><span>lit </span><span>lit </span></span>') == 1


def test_the_reference_stands_beside_expected_and_found(root: Path, edit: Edit) -> None:
    def change(values: Any) -> None:
        values["reference"] = "other.json"
        for row in values["tensors"]:
            row["reference_shape"] = [7, 7] if row["name"] == "norm.weight" else row["shape"]

    assert "reference:" not in Page(report(root)).text
    edit("reports/verify/static.json", change)
    text = Page(report(root)).text
    assert "reference: other.json, 1 unlike it" in text
    assert "7 × 7" in text


def test_acceptance_along_the_context_names_its_rounds(root: Path, edit: Edit) -> None:
    bins = [{"from": 0, "to": 512, "rounds": 1200, "acceptance_length": 1.8}, {"from": 512, "to": 1024, "rounds": 31, "acceptance_length": 1.1}]
    edit(SIMULATION, lambda values: values.update(by_context=bins))
    labels = [attributes.get("aria-label") or "" for name, attributes in Page(report(root)).elements if name == "svg"]
    assert any("0–512 1.80 over 1,200 rounds, 512–1k 1.10 over 31 rounds" in label for label in labels)


@pytest.mark.parametrize("directory", ["reports/verify", "reports/stages", "models", "data"])
def test_a_partial_build_still_has_a_report(root: Path, directory: str) -> None:
    for path in sorted((root / directory).rglob("*"), reverse=True):
        if path.is_file():
            path.unlink()
    assert_harmless(report(root))


def test_odd_shapes_do_not_stop_the_report(root: Path) -> None:
    for path in (root / "reports").rglob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps({key: "odd" if isinstance(value, (dict, list)) else None for key, value in values.items()}))
    (root / "reports/verify/serving.json").write_text(
        json.dumps({"status": "measured", "overall": 3, "categories": {"chat": None}, "speed": [], "equality": "x"})
    )
    assert_harmless(report(root))


def test_a_wrong_shape_comes_first(root: Path, edit: Edit) -> None:
    def change(values: Any) -> None:
        (row,) = [row for row in values["tensors"] if row["name"].endswith("q_proj.weight")]
        row["shape"] = [576, 1152]

    edit("reports/verify/static.json", change)
    edit("reports/verify/static.json", lambda values: values["checks"][2].update(status="fail", hint="set draft.head_dim & train again"))
    text = report(root)
    assert "set draft.head_dim &amp; train again" in text
    assert "1 not as computed from the params" in text
    assert text.index("576 × 1152") < text.index("embed_tokens.weight")


@settings(deadline=None)
@given(st.text())
def test_text_comes_back_from_the_markup_as_it_was(text: str) -> None:
    page = Page(tag("p", text, title=text))
    assert [name for name, _ in page.elements] == ["p"]
    assert Page(join(text)).elements == []
