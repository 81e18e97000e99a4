"""One finding of the doctor, and a list of them as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report. `remedy` is empty only where there is nothing to do."""

    id: str
    status: Status
    detail: str
    remedy: str = ""


def worst(checks: list[Check]) -> Status:
    """The gravest status among `checks`."""
    present = {check.status for check in checks}
    return "fail" if "fail" in present else "warn" if "warn" in present else "ok"


def report_lines(checks: list[Check]) -> Iterator[str]:
    """The report for a terminal: one line per check, its remedy below it, and a closing count."""
    width = max(len(check.id) for check in checks)
    for check in checks:
        yield f"{check.status:4}  {check.id:{width}}  {check.detail}"
        if check.remedy:
            yield f"{'':4}  {'':{width}}  -> {check.remedy}"
    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    yield f"\n{counts['ok']} ok, {counts['warn']} to know about, {counts['fail']} to mend"


def shorten(names: list[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
