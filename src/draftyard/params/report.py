"""params group `report`: how the report presents the build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from draftyard.params.base import require

BASELINES_DIR = "data/baselines"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ReportParams:
    """The report. Any change rebuilds `report` and `gate`."""

    title: str
    """Headline of the report."""
    uncovered_tokens: int
    """How many of the most frequent tokens outside the draft vocabulary are listed."""
    baseline: str | None
    """The build to compare with: a full commit hash, or a metrics file below data/baselines, where DVC sees it change; null: none."""

    def __post_init__(self) -> None:
        require(bool(self.title.strip()), "report.title", self.title, "must not be empty")
        require(self.uncovered_tokens >= 0, "report.uncovered_tokens", self.uncovered_tokens, "must not be negative")
        if self.baseline is not None:
            require(
                COMMIT.fullmatch(self.baseline) is not None or _is_metrics_file(self.baseline),
                "report.baseline",
                self.baseline,
                f"must be a full commit hash, a metrics file below {BASELINES_DIR}/, or null; a branch or tag can move without DVC seeing it: "
                f"git rev-parse {self.baseline} prints the hash",
            )


def _is_metrics_file(path: str) -> bool:
    parts, inside = PurePosixPath(path).parts, PurePosixPath(BASELINES_DIR).parts
    return parts[: len(inside)] == inside and len(parts) > len(inside) and ".." not in parts
