"""Stage `report`: reports/metrics.json, comparison.json and report.md from what the other stages recorded."""

from __future__ import annotations

from draftyard.params.report import ReportParams
from draftyard.reporting.build import write_report
from draftyard.reporting.inputs import MARKDOWN
from draftyard.stage import StageContext, run_stage


def main(context: StageContext) -> None:
    """Write the figures; their verdict never fails the build, the gate does. The page is drawn by the gate, whose lines it shows."""
    verdict = write_report(context.root, context.group(ReportParams, "report"))
    print(f"report: {verdict.sentence}")
    print(f"report: {MARKDOWN}")


if __name__ == "__main__":
    run_stage("report", main)
