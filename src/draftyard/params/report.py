"""params group `report`: how the report presents the build."""

from __future__ import annotations

from dataclasses import dataclass

from draftyard.params.base import require


@dataclass(frozen=True, kw_only=True)
class ReportParams:
    """The report. Any change rebuilds `report` and `gate`."""

    title: str
    """Headline of the report."""
    uncovered_tokens: int
    """How many of the most frequent tokens outside the draft vocabulary are listed."""

    def __post_init__(self) -> None:
        require(bool(self.title.strip()), "report.title", self.title, "must not be empty")
        require(self.uncovered_tokens >= 0, "report.uncovered_tokens", self.uncovered_tokens, "must not be negative")
