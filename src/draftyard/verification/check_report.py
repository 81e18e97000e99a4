"""What `draftyard check` found: one verdict per check, as JSON for programs and as one screen for people."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from draftyard.draft.geometry import ParameterCounts
from draftyard.draft.layouts import Layout

Status = Literal["pass", "fail", "warn", "skipped"]
_COLOURS = {"pass": "32", "fail": "31", "warn": "33"}
SHOWN = 4
"""How many examples a sentence lists before it counts the rest."""


@dataclass(frozen=True)
class Check:
    """One verdict. detail: what was found. hint: what it means for serving and how to mend it (empty when nothing is to be done)."""

    id: str
    status: Status
    detail: str
    hint: str = ""


@dataclass(frozen=True)
class TensorRow:
    """A line of the tensor table. expected_*: None where no formula speaks of it; dtype, shape: None where the tensor is missing."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    expected_dtype: str | None
    expected_shape: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All verdicts on one checkpoint. `error` is set when it cannot be read as a checkpoint at all."""

    subject: str
    layout: Layout | None = None
    parameters: ParameterCounts | None = None
    checks: tuple[Check, ...] = ()
    tensors: tuple[TensorRow, ...] = field(default=(), repr=False)
    error: str | None = None

    @property
    def status(self) -> Literal["pass", "fail", "error"]:
        """error: unreadable; fail: at least one check fails; else pass (warnings included)."""
        if self.error is not None:
            return "error"
        return "fail" if any(check.status == "fail" for check in self.checks) else "pass"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 error."""
        return {"pass": 0, "fail": 1, "error": 2}[self.status]

    def by_id(self, check_id: str) -> Check:
        """The check of that id; KeyError when there is none."""
        for check in self.checks:
            if check.id == check_id:
                return check
        raise KeyError(check_id)

    def to_json(self) -> dict[str, Any]:
        """The object of `--json` (keys: DESIGN, interfaces)."""
        checks = [check.__dict__ for check in self.checks]
        if self.error is not None:
            checks = [Check("readable", "fail", self.error, "it cannot be served or checked until it can be read").__dict__]
        counts = self.parameters or ParameterCounts(0, 0, 0)
        return {"status": self.status, "layout": self.layout, "parameters": dict(counts.__dict__), "checks": checks}


def join(sentences: list[str]) -> str:
    """The first few of `sentences`, and how many more there are."""
    more = len(sentences) - SHOWN
    return "; ".join(sentences[:SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _with_head(report: CheckReport) -> str:
    """What the number of trainable weights rests on where lm_head could not be compared with the verifier's rows."""
    compared = any(check.id == "verifier.lm_head" and check.status != "skipped" for check in report.checks)
    head = next((row for row in report.tensors if row.name == "lm_head.weight"), None)
    if compared or head is None or head.shape is None or report.layout != "speculators":
        return ""
    return f" if lm_head ({math.prod(head.shape):,}) was frozen: --verifier tells"


def render(report: CheckReport, *, colour: bool, width: int = 120) -> str:
    """One screen: the verdict first, then what fails and warns with its hint, then the rest in a line each."""

    def paint(text: str, status: str) -> str:
        return f"\x1b[{_COLOURS[status]}m{text}\x1b[0m" if colour else text

    if report.error is not None:
        return f"{paint('ERROR', 'fail')} {report.error}"
    failed = [check for check in report.checks if check.status == "fail"]
    warned = [check for check in report.checks if check.status == "warn"]
    skipped = [check.id for check in report.checks if check.status == "skipped"]
    passed = [check for check in report.checks if check.status == "pass"]
    verdict = f"{len(failed)} of {len(report.checks)} checks fail" if failed else f"{len(passed)} checks pass"
    verdict += f", {len(warned)} warn" if warned else ""
    verdict += f", {len(skipped)} skipped" if skipped else ""
    lines = [f"{paint('FAIL', 'fail') if failed else paint('PASS', 'pass')} {report.subject}: {verdict}"]
    if report.parameters is not None:
        counts = report.parameters
        weights = f"{counts.saved:,} weights saved, {counts.total:,} in training, {counts.trainable:,} trainable{_with_head(report)}"
        lines.append(f"     {report.layout or 'unknown'} layout, {len(report.tensors)} tensors, {weights}")
    for check in failed + warned:
        lines.append("")
        first, *rest = textwrap.wrap(f"{check.id}: {check.detail}", width - 5) or [check.id]
        lines += [f"{paint(check.status, check.status)} {first}", *(f"     {line}" for line in rest)]
        lines += textwrap.wrap(check.hint, width, initial_indent="     -> ", subsequent_indent="        ") if check.hint else []
    if passed:
        lines.append("")
    for check in passed:
        text = f"{check.id}: {check.detail}"
        lines.append(f"{paint('pass', 'pass')} {text if len(text) <= width - 5 else text[: width - 8] + '...'}")
    if skipped:
        lines += textwrap.wrap(f"skipped: {', '.join(skipped)}", width, subsequent_indent="         ")
    return "\n".join(lines)
