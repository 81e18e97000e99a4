"""The earlier build that a report compares with: a commit of this repository, or a metrics file."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftyard.errors import ArtifactError
from draftyard.params.report import COMMIT
from draftyard.reporting.samples import PromptCounts, prompt_counts

METRICS = "reports/metrics.json"
RECORDS = {"served": "reports/verify/serving.json", "simulated": "reports/verify/simulation.json"}
MAX_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """name: what to call it. origin: what `report.baseline` resolved to. digest: SHA-256 of its metrics file.

    samples: "served", "simulated" -> counts per prompt; empty where only a metrics file is known.
    """

    name: str
    origin: str
    digest: str
    metrics: dict[str, Any]
    samples: dict[str, list[PromptCounts]]


def load_baseline(root: Path, given: str | None) -> Baseline | None:
    """The build that `report.baseline` names, or None. Raises ArtifactError when it is not there or no metrics file."""
    if given is None:
        return None
    if COMMIT.fullmatch(given) is None:
        return _from_file(root, given)
    said = _git(root, "show", "-s", "--format=%cs %s", f"{given}^{{commit}}")
    if said is None:
        raise ArtifactError(f"report.baseline={given}: this repository has no such commit; git fetch it (a shallow clone: git fetch --unshallow)")
    content = _git(root, "show", f"{given}:./{METRICS}")
    if content is None:
        raise ArtifactError(f"report.baseline={given}: the commit holds no {METRICS}; name a commit that has a finished build")
    samples = {how: prompt_counts(_parse(text, f"{given[:12]}:{path}")) for how, path in RECORDS.items() if (text := _git(root, "show", f"{given}:./{path}"))}
    return Baseline(
        name=f"commit {given[:12]}",
        origin=f"{given}, {said.decode('utf-8', 'replace').strip()}",
        digest=hashlib.sha256(content).hexdigest(),
        metrics=_parse(content, f"{given[:12]}:{METRICS}"),
        samples=samples,
    )


def _from_file(root: Path, given: str) -> Baseline:
    path = root / given
    if not path.is_file():
        raise ArtifactError(f"report.baseline={given}: no such file; copy the {METRICS} of the earlier build there")
    if path.stat().st_size > MAX_BYTES:
        raise ArtifactError(f"report.baseline={given}: {path.stat().st_size} bytes is no metrics file; copy the {METRICS} of a build there")
    content = path.read_bytes()
    return Baseline(name=given, origin=given, digest=hashlib.sha256(content).hexdigest(), metrics=_parse(content, given), samples={})


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactError(f"report.baseline: {name} is not valid JSON") from None
    if not isinstance(values, dict):
        raise ArtifactError(f"report.baseline: {name} holds a {type(values).__name__}, expected an object; it is no file of a build")
    return values


def _git(root: Path, *arguments: str) -> bytes | None:
    """The output of git in `root`, or None when git fails."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except FileNotFoundError:
        raise ArtifactError("report.baseline names a commit, but git is not installed; install it, or name a metrics file") from None
    return done.stdout if done.returncode == 0 else None
