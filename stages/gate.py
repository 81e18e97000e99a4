"""Stage `gate`: draws reports/report.html, and fails the build when a figure of reports/metrics.json misses its threshold."""

from __future__ import annotations

from draftyard.artifacts.files import read_json
from draftyard.errors import ArtifactError, DraftyardError
from draftyard.gate import evaluate, red
from draftyard.params.gate import GateParams
from draftyard.params.report import ReportParams
from draftyard.reporting.inputs import HTML, METRICS
from draftyard.reporting.page import write_page
from draftyard.stage import StageContext, run_stage


def main(context: StageContext) -> None:
    """Print every line of the gate and draw the page with them, red or not. Raises DraftyardError naming each red line."""
    params = context.group(GateParams, "gate")
    metrics = read_json(context.root / METRICS, max_bytes=1 << 24)
    if not isinstance(metrics, dict):
        raise ArtifactError(f"{METRICS}: holds a {type(metrics).__name__}, expected an object; rebuild it with dvc repro report")
    lines = evaluate(params, metrics)
    for line in lines:
        print(f"gate: {line}")
    write_page(context.root, context.group(ReportParams, "report"), lines)
    print(f"gate: the page is {HTML}")
    failed = red(lines)
    if failed:
        named = "; ".join(f"{line.id} ({line.found}, required {line.threshold})" for line in failed)
        raise DraftyardError(f"{len(failed)} of {len(lines)} lines red: {named}. The report is in {HTML}")


if __name__ == "__main__":
    run_stage("gate", main)
