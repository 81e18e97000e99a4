"""Stage `gate`: fails the build when a figure of reports/metrics.json misses its threshold."""

from __future__ import annotations

from draftyard.artifacts.files import read_json
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.gate import evaluate, red
from draftyard.params.gate import GateParams
from draftyard.stage import StageContext, run_stage

METRICS = "reports/metrics.json"


def main(context: StageContext) -> None:
    """Print every line of the gate. Raises DraftyardError naming each red one."""
    params = context.group(GateParams, "gate")
    metrics = read_json(context.root / METRICS, max_bytes=1 << 24)
    if not isinstance(metrics, dict):
        raise ArtifactError(f"{METRICS}: holds a {type(metrics).__name__}, expected an object; rebuild it with dvc repro report")
    lines = evaluate(params, metrics)
    for line in lines:
        print(f"gate: {line}")
    failed = red(lines)
    if failed:
        named = "; ".join(f"{line.id} ({line.found}, required {line.threshold})" for line in failed)
        raise DraftyardError(f"{len(failed)} of {len(lines)} lines red: {named}. The report is in reports/report.html")


if __name__ == "__main__":
    run_stage("gate", main)
