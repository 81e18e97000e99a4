"""The embedded prompts are worth training on: many, of many kinds, none like another."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from draftyard.artifacts.prompts import Prompt
from draftyard.prompts.collect import collect
from draftyard.prompts.near import NearDuplicateIndex
from draftyard.prompts.sources import open_sources
from draftyard.prompts.text import normalise, views

from .defaults import params

ROOT = Path(__file__).resolve().parents[2]
CATEGORIES = {"chat", "writing", "code", "maths", "reasoning", "extraction", "summarisation", "translation"}


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    given = params(sources=({"kind": "embedded", "path": "data/sources/embedded"},))
    store: list[Prompt] = []
    collection = collect(open_sources(given.sources, ROOT), given, store)
    assert collection.counts.read.total() == len(store), "no line is rejected, none is a duplicate"
    return store


def opening(prompt: Prompt, words: int) -> str:
    return " ".join(normalise(prompt.turns[0]).split()[:words])


def test_enough_of_every_kind(prompts: list[Prompt]) -> None:
    assert len(prompts) >= 600
    sizes = Counter(prompt.category for prompt in prompts)
    assert set(sizes) >= CATEGORIES
    assert min(sizes.values()) >= 50


def test_conversations_and_system_prompts(prompts: list[Prompt]) -> None:
    assert sum(len(prompt.turns) > 1 for prompt in prompts) >= len(prompts) * 0.08
    assert sum(len(prompt.turns) > 2 for prompt in prompts) >= 5
    systems = [normalise(prompt.system) for prompt in prompts if prompt.system]
    assert len(systems) >= len(prompts) * 0.05
    assert len(set(systems)) >= 0.9 * len(systems)


def test_no_two_are_alike(prompts: list[Prompt]) -> None:
    index = NearDuplicateIndex(0.3)  # stricter than any build would ask for
    alike = []
    for number, prompt in enumerate(prompts):
        near = views(prompt.turns)
        if (other := index.find(*near)) is not None:
            alike.append((prompts[other].id, prompt.id))
        index.add(number, *near)
    assert alike == []


def test_no_template(prompts: list[Prompt]) -> None:
    """Openings of three words are mostly distinct, also inside each category, and none is common."""
    for name in ["", *sorted(CATEGORIES)]:
        group = [prompt for prompt in prompts if name in ("", prompt.category)]
        openings = Counter(opening(prompt, 3) for prompt in group)
        assert len(openings) >= 0.85 * len(group), name
        assert openings.most_common(1)[0][1] <= max(2, 0.03 * len(group)), name


def test_lengths_differ(prompts: list[Prompt]) -> None:
    words = sorted(len(normalise(" ".join(prompt.turns)).split()) for prompt in prompts)
    assert words[0] >= 2
    assert words[len(words) // 10] * 4 <= words[-len(words) // 10]
    assert words[-1] <= 600, "fits a short context with room for the answer"


def test_ids_name_their_category(prompts: list[Prompt]) -> None:
    assert all(prompt.id.startswith(prompt.category + "-") for prompt in prompts)


def test_texts_are_clean(prompts: list[Prompt]) -> None:
    for prompt in prompts:
        for text in (prompt.system or "x", *prompt.turns):
            assert text == text.strip(), prompt.id
            assert "\ufffd" not in text, prompt.id
            assert "<|" not in text, f"{prompt.id}: looks like a special token of a chat template"
