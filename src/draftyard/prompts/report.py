"""reports/stages/prompts.json: every line that was read, by source, category and what became of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from draftyard.prompts.collect import Collection
from draftyard.prompts.select import Selection

OUTCOMES = ("rejected", "duplicates", "near_duplicates", "cut", "train", "holdout")


def describe(collection: Collection, selection: Selection) -> dict[str, Any]:
    """Counts in total, per category and per source and category; `read` is always the sum of OUTCOMES.

    examples: source -> {"file:line": reason} of the first rejected lines.
    """
    counts = collection.counts
    cells: dict[str, Counter[tuple[str, str]]] = {"rejected": counts.rejected, "duplicates": counts.duplicates}
    for outcome in ("near_duplicates", "cut", "train", "holdout"):
        cells[outcome] = Counter((candidate.source, candidate.category) for candidate in getattr(selection, outcome))

    def table(wanted: list[tuple[str, str]]) -> dict[str, int]:
        row = {outcome: sum(cells[outcome][cell] for cell in wanted) for outcome in OUTCOMES}
        return {"read": sum(counts.read[cell] for cell in wanted), **row}

    every = sorted(counts.read)
    return {
        "total": table(every),
        "categories": {name: table([cell for cell in every if cell[1] == name]) for name in sorted({cell[1] for cell in every})},
        "sources": {
            label: {"total": table([cell for cell in every if cell[0] == label]), "categories": {cell[1]: table([cell]) for cell in every if cell[0] == label}}
            for label in sorted({cell[0] for cell in every})
        },
        "examples": {label: examples for label, examples in collection.rejects.items() if examples},
    }
