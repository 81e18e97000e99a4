"""metrics.json: golden figures from the recorded counts, stable keys, null for what was not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftyard.errors import ArtifactError
from draftyard.reporting.inputs import load_record
from draftyard.reporting.metrics import build_metrics

Edit = Callable[[str, Callable[[Any], Any]], None]
SERVING = "reports/verify/serving.json"


def figures(root: Path) -> dict[str, Any]:
    return build_metrics(load_record(root))


def test_figures_follow_from_the_recorded_counts(root: Path) -> None:
    serving = json.loads((root / SERVING).read_text())
    simulation = json.loads((root / "reports/verify/simulation.json").read_text())
    found = figures(root)
    served = 1 + sum(serving["overall"]["accepted"]) / serving["overall"]["rounds"]
    simulated = 1 + sum(simulation["accepted"]) / simulation["rounds"]
    assert found["acceptance_length"]["served"] == pytest.approx(served, abs=1e-12)
    assert found["simulation_gap"] == pytest.approx(simulated / served - 1, abs=1e-12)
    assert found["acceptance_rate"]["served"]["position_2"] == serving["overall"]["accepted"][1] / serving["overall"]["rounds"]
    assert found["equal_outputs"] == 39 / 40
    assert found["speedup"] == {key: serving["speed"][f"speedup_{key}"] for key in ("median", "min", "max")}
    assert found["tokens_per_s"] == {"plain": 14.28, "draft": 20.27}
    assert found["acceptance_length"]["trained"] == 1.79
    assert found["coverage"] == {"train": 0.9871, "holdout": 0.9702}
    assert found["static"] == {"status": "pass", "failed": 0}
    assert set(found["acceptance_by_category"]) == set(serving["categories"])


def test_a_length_that_was_not_written_is_computed_from_the_counts(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values["overall"].update(acceptance_length=None, rounds=100, accepted=[50, 25, 5]))
    assert figures(root)["acceptance_length"]["served"] == pytest.approx(1.8)


def test_skipped_serving_leaves_null_and_never_the_simulation(root: Path) -> None:
    (root / SERVING).write_text(json.dumps({"status": "skipped", "reason": "MLA on a CPU"}))
    found = figures(root)
    assert found["serving_status"] == "skipped"
    assert found["acceptance_length"]["served"] is None
    assert found["acceptance_length"]["simulated"] > 1
    assert found["simulation_gap"] is None
    assert found["equal_outputs"] is None
    assert found["speedup"]["median"] is None


def test_every_key_is_there_for_an_empty_build(root: Path, tmp_path: Path) -> None:
    def keys(values: dict[str, Any]) -> set[str]:
        return {key if not isinstance(value, dict) else f"{key}." for key, value in values.items()}

    empty = figures(tmp_path / "nothing")
    assert keys(empty) == keys(figures(root))
    assert empty["serving_status"] == "missing"
    assert empty["static"] == {"status": None, "failed": None}


def test_another_k_is_not_compared(root: Path, edit: Edit) -> None:
    edit(SERVING, lambda values: values.update(k=4))
    assert figures(root)["simulation_gap"] is None


@pytest.mark.parametrize("value", [True, "1.8", float("inf"), 10**400, [1.8]])
def test_what_is_no_number_is_null(root: Path, edit: Edit, value: Any) -> None:
    edit("reports/stages/vocab.json", lambda values: values.update(coverage_holdout=value if value != float("inf") else 1e308 * 10))
    assert figures(root)["coverage"]["holdout"] is None


@pytest.mark.parametrize("path", [SERVING, "reports/stages/train.json"])
def test_a_damaged_record_is_named(root: Path, path: str) -> None:
    (root / path).write_text('["not", "an object"]')
    with pytest.raises(ArtifactError, match=f"{path}.*expected an object"):
        load_record(root)


def test_a_damaged_curve_is_named_with_its_line(root: Path) -> None:
    (root / "reports/training.csv").write_text("step,loss\n1,2.5\n2,oops\n")
    with pytest.raises(ArtifactError, match=r"training.csv, line 3.*no number"):
        load_record(root)
