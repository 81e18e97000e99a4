"""What the report is made from: the records that the stages left, read once."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftyard.artifacts.card import read_card
from draftyard.artifacts.files import digest_json, read_json
from draftyard.artifacts.lineage import FILE, Lineage, read_lineage
from draftyard.errors import ArtifactError

CARD = "models/verifier.json"
STAGES = ("verifier", "prompts", "generate", "hidden_states", "vocab", "train")
TRAINING_CURVES = "reports/training.csv"
METRICS, COMPARISON, MARKDOWN, HTML = "reports/metrics.json", "reports/comparison.json", "reports/report.md", "reports/report.html"
ARTIFACTS = {
    "prompts": "data/prompts",
    "generations": "data/generations",
    "hidden_states": "data/hidden_states",
    "vocab": "models/vocab",
    "draft": "models/draft",
}
"""Artifact kind (as its lineage names it) -> directory, in the order of the build."""
MAX_JSON_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """The records of one build; a missing file is an empty mapping, so that a report exists for a partial build too.

    card: the verifier's card. stages: stage name -> its metrics. curves: rows of the training curves, numbers only.
    static, simulation, serving: what `verify` wrote. lineages: artifact kind -> lineage, for those on this machine.
    comparison: what stage `report` wrote about `report.baseline`; empty before it did.
    """

    card: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    curves: tuple[dict[str, float], ...]
    static: dict[str, Any]
    simulation: dict[str, Any]
    serving: dict[str, Any]
    lineages: dict[str, Lineage]
    comparison: dict[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether the draft was served by an engine."""
        return self.serving.get("status") == "measured"

    def digests(self) -> dict[str, str]:
        """Artifact kind -> digest of what is on this machine; the verifier's is that of its card."""
        digests = {kind: lineage.digest for kind, lineage in self.lineages.items()}
        if self.card:
            digests["verifier"] = digest_json(self.card)
        return digests

    def broken_links(self) -> list[str]:
        """A sentence for each artifact that was made from another version of an input than the one present."""
        present = self.digests()
        return [
            f"{kind} was made from {name} {used[:12]}, but {name} here is {present[name][:12]}"
            for kind, lineage in self.lineages.items()
            for name, used in sorted(lineage.inputs.items())
            if name in present and present[name] != used
        ]


def load_record(root: Path) -> BuildRecord:
    """Read the records below the repository `root`. Raises ArtifactError for a damaged file."""
    verify = root / "reports" / "verify"
    return BuildRecord(
        card=read_card(root / CARD).to_json() if (root / CARD).exists() else {},
        stages={name: _mapping(root / "reports" / "stages" / f"{name}.json") for name in STAGES},
        curves=_curves(root / TRAINING_CURVES),
        static=_mapping(verify / "static.json"),
        simulation=_mapping(verify / "simulation.json"),
        serving=_mapping(verify / "serving.json"),
        comparison=_mapping(root / COMPARISON),
        lineages={kind: read_lineage(root / path, kind) for kind, path in ARTIFACTS.items() if (root / path / FILE).exists()},
    )


def _mapping(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    values = read_json(path, max_bytes=MAX_JSON_BYTES)
    if not isinstance(values, dict):
        raise ArtifactError(f"{path}: holds a {type(values).__name__}, expected an object; rebuild it with dvc repro")
    return values


def _curves(path: Path) -> tuple[dict[str, float], ...]:
    if not path.exists():
        return ()
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                found.append({key: float(value) for key, value in row.items() if value not in (None, "")})
            except (TypeError, ValueError):
                raise ArtifactError(f"{path}, line {line}: {row!r} holds something that is no number; rebuild it with dvc repro") from None
    return tuple(found)
