"""The gate: each line alone turns red, a missing figure is red, a skip is only what the params allow."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from draftyard.errors import ArtifactError, DraftyardError
from draftyard.gate import evaluate, red
from draftyard.params.gate import GateParams
from draftyard.stage import StageContext

THRESHOLDS: dict[str, Any] = {
    "min_acceptance_length": 1.45,
    "max_simulation_gap": 0.02,
    "min_equal_outputs": 0.95,
    "min_canary_agreement": 0.97,
    "min_holdout_coverage": 0.9,
    "require_serving": True,
}
GOOD: dict[str, Any] = {
    "static": {"status": "pass", "failed": 0},
    "serving_status": "measured",
    "acceptance_length": {"served": 1.78, "simulated": 1.77},
    "simulation_gap": -0.0056,
    "equal_outputs": 1.0,
    "canary": {"agreement": 0.998},
    "coverage": {"holdout": 0.97},
}
FIGURES = {
    "static_checks": "static.failed",
    "serving": "serving_status",
    "acceptance_length": "acceptance_length.served",
    "simulation_gap": "simulation_gap",
    "equal_outputs": "equal_outputs",
    "canary": "canary.agreement",
    "holdout_coverage": "coverage.holdout",
}


def params(**changes: Any) -> GateParams:
    return GateParams(**{**THRESHOLDS, **changes})


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with the figure at a dotted path replaced; `...` removes it."""
    metrics = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    target = metrics
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return metrics


def statuses(gate: GateParams, metrics: dict[str, Any]) -> dict[str, str]:
    return {line.id: line.status for line in evaluate(gate, metrics)}


def test_a_good_build_is_green_on_every_line() -> None:
    assert statuses(params(), GOOD) == dict.fromkeys(FIGURES, "green")


@pytest.mark.parametrize("value", [..., None, True, "0.99", float("nan"), float("inf"), [1.0], {}])
@pytest.mark.parametrize("line", FIGURES)
def test_a_missing_figure_is_red_and_nothing_else_is(line: str, value: Any) -> None:
    assert statuses(params(), changed(FIGURES[line], value)) == {**dict.fromkeys(FIGURES, "green"), line: "red"}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("static_checks", 1),
        ("serving", "skipped"),
        ("acceptance_length", 1.4499),
        ("simulation_gap", 0.0201),
        ("simulation_gap", -0.0201),
        ("equal_outputs", 0.9499),
        ("canary", 0.9699),
        ("holdout_coverage", 0.8999),
    ],
)
def test_a_figure_beyond_its_threshold_is_red(line: str, value: Any) -> None:
    (found,) = red(evaluate(params(), changed(FIGURES[line], value)))
    assert found.id == line
    assert found.hint


@pytest.mark.parametrize(("line", "value"), [("acceptance_length", 1.45), ("simulation_gap", 0.02), ("simulation_gap", -0.02), ("equal_outputs", 0.95)])
def test_the_threshold_itself_is_green(line: str, value: Any) -> None:
    assert red(evaluate(params(), changed(FIGURES[line], value))) == []


def test_an_empty_mapping_is_red_throughout() -> None:
    assert statuses(params(), {}) == dict.fromkeys(FIGURES, "red")
    assert statuses(params(require_serving=False), {}) == dict.fromkeys(FIGURES, "red")


def skipped() -> dict[str, Any]:
    return {**GOOD, "serving_status": "skipped", "acceptance_length": {"served": None, "simulated": 1.77}, "simulation_gap": None, "equal_outputs": None}


def test_a_required_serving_that_was_skipped_is_red() -> None:
    assert [line.id for line in red(evaluate(params(), skipped()))] == ["serving", "acceptance_length", "simulation_gap", "equal_outputs"]


def test_an_excused_serving_holds_the_simulation_to_the_threshold() -> None:
    excused = params(require_serving=False)
    expected = {**dict.fromkeys(FIGURES, "green"), "serving": "skipped", "simulation_gap": "skipped", "equal_outputs": "skipped"}
    assert statuses(excused, skipped()) == expected
    weak = {**skipped(), "acceptance_length": {"served": None, "simulated": 1.2}}
    assert [(line.id, line.found) for line in red(evaluate(excused, weak))] == [("acceptance_length", "simulated 1.2000")]


@pytest.mark.parametrize("status", ["missing", None, "measured"])
def test_only_a_stated_skip_is_excused(status: Any) -> None:
    lines = red(evaluate(params(require_serving=False), {**skipped(), "serving_status": status}))
    assert {"acceptance_length", "simulation_gap", "equal_outputs"} <= {line.id for line in lines}


def run_stage_main(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("gate_stage", Path(__file__).parents[1] / "stages" / "gate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = {"title": "A draft", "uncovered_tokens": 1, "baseline": None}
    module.main(StageContext("gate", root, {"gate": THRESHOLDS, "report": report}, None, root))  # type: ignore[arg-type]


def write_metrics(root: Path, values: Any) -> None:
    (root / "reports").mkdir()
    (root / "reports/metrics.json").write_text(json.dumps(values))


def test_the_stage_prints_each_line_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_metrics(tmp_path, GOOD)
    run_stage_main(tmp_path)
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == list(FIGURES)
    assert last == "gate: the page is reports/report.html"


def test_the_stage_fails_naming_each_red_line(tmp_path: Path) -> None:
    write_metrics(tmp_path, {**changed("equal_outputs", 0.5), "coverage": {}})
    with pytest.raises(
        DraftyardError, match=r"2 of 7 lines red: equal_outputs \(0.5000, required >= 0.95 \(gate.min_equal_outputs\)\); holdout_coverage \(no number"
    ):
        run_stage_main(tmp_path)
    page = (tmp_path / "reports/report.html").read_text()
    assert "2 of 7 lines are red: equal outputs, holdout coverage. The build fails." in page


def test_the_stage_without_metrics_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"metrics.json: no such file; run the stage"):
        run_stage_main(tmp_path)
