"""The machine: what a container allows."""

from __future__ import annotations

import pytest

from draftyard.doctor import machine


def test_quota_below_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.5)
    check = machine.check_threads()
    assert check.status == "warn"
    assert "threads: 1" in check.remedy
