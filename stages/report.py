"""Stage `report`: reports/report.html, report.md and metrics.json from what the other stages recorded."""

from __future__ import annotations

from draftyard.params.report import ReportParams
from draftyard.reporting.build import HTML, write_report
from draftyard.stage import StageContext, run_stage


def main(context: StageContext) -> None:
    """Write the report; its verdict never fails the build, the gate does."""
    verdict = write_report(context.root, context.group(ReportParams, "report"))
    print(f"report: {verdict.sentence}")
    print(f"report: {HTML}")


if __name__ == "__main__":
    run_stage("report", main)
