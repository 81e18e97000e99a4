"""Disk, memory and limits against the plan of params.yaml."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from draftyard.doctor import build
from draftyard.doctor.build import Build

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


@pytest.fixture(scope="module")
def planned() -> Build:
    """The plan of this repository."""
    return build.load_build(ROOT)


def with_rooms(planned: Build, needed: int, free: int) -> Build:
    assert planned.plan is not None
    rooms = tuple(dataclasses.replace(room, needed=needed, free=free) for room in planned.plan.rooms)
    return dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, rooms=rooms))


def test_the_repository_can_be_planned(planned: Build) -> None:
    assert planned.problem == ""
    assert build.check_params(planned).status == "ok"


def test_a_mistake_in_params_is_a_failed_check(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("draft: 3\n")
    check = build.check_params(build.load_build(tmp_path))
    assert check.status == "fail"
    assert "draftyard plan" in check.remedy
    assert build.load_build(tmp_path / "nowhere").problem.endswith("params.yaml: no such file")


@pytest.mark.parametrize(("needed", "free", "status"), [(10, 10, "fail"), (10, 11, "warn"), (10, 13, "ok")])
def test_disk_is_held_against_the_plan(planned: Build, needed: int, free: int, status: str) -> None:
    checks = build.check_disk(with_rooms(planned, needed * GIB, free * GIB), ROOT)
    assert {check.status for check in checks} == {status}
    assert "outputs and DVC cache: 10.7 GB by the plan" in checks[0].detail


def test_memory_is_that_of_two_engines_or_of_training(planned: Build) -> None:
    assert planned.plan is not None
    memory = {**planned.plan.memory, "training_bytes": 3 * GIB, "available_bytes": 8 * GIB}
    both = dataclasses.replace(planned, plan=dataclasses.replace(planned.plan, memory=memory), engine_bytes=9 * GIB)
    on_cpu = build.check_memory(both, "cpu")
    assert on_cpu.status == "fail"
    assert "the two engines of verify: 9.7 GB" in on_cpu.detail
    assert build.check_memory(both, "cuda").status == "ok"  # the engines have the GPU's memory


def test_without_a_plan_the_default_build_is_the_measure(tmp_path: Path) -> None:
    unplanned = Build(None, "params.yaml: no such file")
    (disk,) = build.check_disk(unplanned, tmp_path)
    assert "GiB" in disk.detail
    assert "GiB" in build.check_memory(unplanned, "cpu").detail


@pytest.mark.parametrize(("gib", "status"), [(1, "fail"), (5, "warn"), (50, "ok")])
def test_disk(gib: int, status: str) -> None:
    check = build.check_space("disk", gib << 30, build.DISK_GIB, "free up space")
    assert check.status == status
    assert f"{gib}.0 GiB free" in check.detail


def test_limits_warn_of_what_the_build_asks_for(planned: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "has_bf16_hardware", lambda: False)
    assert planned.plan is not None
    assert {check.id: check.status for check in build.check_limits(planned, "cpu")} == {"limit: MLA": "ok", "limit: Muon": "ok"}
    mla = dataclasses.replace(planned.plan, verifier=dataclasses.replace(planned.plan.verifier, mla=True))
    asked = dataclasses.replace(planned, plan=mla, optimizer="muon")
    checks = build.check_limits(asked, "cpu")
    assert [check.status for check in checks] == ["warn", "warn"]
    assert "gate.require_serving: false" in checks[0].remedy
    assert checks[1].remedy == "train.optimizer: adamw"
    assert [check.status for check in build.check_limits(asked, "cuda")] == ["ok"]
