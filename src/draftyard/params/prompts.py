"""params group `prompts`: where prompts come from and how they are split."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from draftyard.params.base import require

SOURCES_DIR = "data/sources"
KINDS = {"embedded": {"path"}, "jsonl": {"path", "category"}, "hf": {"name", "revision", "split", "config", "category"}}
OPTIONAL = {"category", "config", "split"}


@dataclass(frozen=True, kw_only=True)
class PromptsParams:
    """The prompts. Any change rebuilds from `prompts` on."""

    sources: tuple[dict[str, Any], ...]
    """A list of {kind: embedded|jsonl|hf, ...}; files live below data/sources, where DVC sees them change."""
    max_prompts: int | None
    """At most this many prompts over train and holdout; train is cut, over categories by their weights. null: all."""
    category_weights: dict[str, float]
    """Share of a category in what max_prompts leaves, relative to the others: {summarisation: 0.5} takes half as many; not named: 1."""
    holdout_prompts: int
    """How many prompts are held out for simulation, serving and the training's own evaluation."""
    near_duplicate_threshold: float
    """A prompt whose word 5-gram Jaccard similarity with a holdout prompt reaches this is kept out of both splits (0..1]."""
    max_reject_fraction: float
    """The stage fails when a larger fraction of a source's lines is rejected (duplicates not counted), 0..1."""
    seed: int
    """Salt of the hash that splits train from holdout and picks when max_prompts cuts."""

    def __post_init__(self) -> None:
        require(len(self.sources) > 0, "prompts.sources", self.sources, "needs at least one source")
        for i, source in enumerate(self.sources):
            key = f"prompts.sources[{i}]"
            kind = source.get("kind")
            require(isinstance(kind, str) and kind in KINDS, f"{key}.kind", kind, f"must be one of {', '.join(KINDS)}")
            known = KINDS[str(kind)]
            for name in source:
                require(name == "kind" or name in known, f"{key}.{name}", source[name], f"unknown key for kind {kind}; known: {', '.join(sorted(known))}")
                require(isinstance(source[name], str) or (source[name] is None and name in OPTIONAL), f"{key}.{name}", source[name], "must be a text")
            if kind in ("embedded", "jsonl"):
                path = PurePosixPath(str(source.get("path", "")))
                inside = path.parts[:2] == PurePosixPath(SOURCES_DIR).parts and ".." not in path.parts
                require(inside, f"{key}.path", source.get("path"), f"must lie below {SOURCES_DIR}/, where the build notices a change")
            else:
                name = source.get("name", "")
                require(
                    re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name) is not None,
                    f"{key}.name",
                    name,
                    "hf needs the data set's id on the hub (organisation/name)",
                )
                revision = source.get("revision", "")
                require(
                    re.fullmatch(r"[0-9a-f]{40}", revision) is not None,
                    f"{key}.revision",
                    revision,
                    "hf needs the full commit hash (40 hex digits): a branch name is not a version",
                )
        require(self.max_prompts is None or self.max_prompts > 0, "prompts.max_prompts", self.max_prompts, "must be positive or null")
        for name, weight in self.category_weights.items():
            require(0 < weight < math.inf, f"prompts.category_weights.{name}", weight, "must be positive; to leave a category out, leave it out of the sources")
        require(self.holdout_prompts >= 1, "prompts.holdout_prompts", self.holdout_prompts, "must be at least 1")
        if self.max_prompts is not None:
            require(
                self.holdout_prompts < self.max_prompts,
                "prompts.holdout_prompts",
                self.holdout_prompts,
                f"must be smaller than prompts.max_prompts={self.max_prompts}",
            )
        require(0 < self.near_duplicate_threshold <= 1, "prompts.near_duplicate_threshold", self.near_duplicate_threshold, "must lie in (0, 1]")
        require(0 <= self.max_reject_fraction <= 1, "prompts.max_reject_fraction", self.max_reject_fraction, "must lie in [0, 1]")
