"""The whole report: exit status, JSON, and checks that break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftyard import doctor
from draftyard.doctor.check import Check, Status

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> list[Check]:
    """This machine and repository, with one check that breaks, and without the import of vLLM, which takes 10 seconds."""

    def broken() -> Check:
        raise RuntimeError("no line MemAvailable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "check_threads", broken)
        return doctor.collect(ROOT, ask_engine=False)


def test_a_check_that_breaks_is_a_failed_check(found: list[Check]) -> None:
    (threads,) = [check for check in found if check.id == "threads"]
    assert threads.status == "fail"
    assert "no line MemAvailable" in threads.detail


def test_every_problem_has_a_remedy(found: list[Check]) -> None:
    assert len(found) > 15
    for check in found:
        assert check.status == "ok" or check.remedy, check


@pytest.mark.parametrize(("statuses", "code"), [(["ok", "ok"], 0), (["ok", "warn"], 0), (["warn", "fail"], 1)])
def test_exit_status_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], statuses: list[Status], code: int) -> None:
    checks = [Check(id=f"c{i}", status=status, detail="d", remedy="" if status == "ok" else "do this") for i, status in enumerate(statuses)]
    monkeypatch.setattr(doctor, "collect", lambda root: checks)
    assert doctor.run(True) == code
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == statuses[-1]
    assert shown["checks"][-1] == {"id": "c1", "status": statuses[-1], "detail": "d", "remedy": checks[-1].remedy}
    assert doctor.run(False) == code
    text = capsys.readouterr().out
    assert ("-> do this" in text) == (statuses[-1] != "ok")
