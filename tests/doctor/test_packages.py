"""Installed packages: one broken thing at a time, and the line and remedy it must give."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from draftyard.doctor import packages
from draftyard.doctor.check import Check


def versions(**installed: str) -> Callable[[str], str]:
    """A stand-in for importlib.metadata.version that knows `installed` only."""

    def version_of(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    return version_of


def test_python_too_old() -> None:
    check = packages.check_python((3, 10, 4))
    assert check.status == "fail"
    assert "3.10.4" in check.detail
    assert "3.11" in check.detail
    assert "PYTHON=" in check.remedy
    assert packages.check_python((3, 11, 0)).status != "fail"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.lock"
    path.write_text("# made by\n#    make lock\ntorch==2.13.0\nnumpy==2.3.5\nantlr4-python3-runtime==4.9.3\n")
    return path


def test_packages_as_locked(lock: Path) -> None:
    found = versions(torch="2.13.0+cpu", numpy="2.3.5", **{"antlr4-python3-runtime": "4.9.3"})
    assert packages.check_packages(lock, found) == Check(id="packages", status="ok", detail="all 3 as in cpu.lock")


def test_a_missing_package_is_named(lock: Path) -> None:
    check = packages.check_packages(lock, versions(torch="2.13.0", numpy="2.3.5"))
    assert check.status == "fail"
    assert check.detail == "1 of 3 missing: antlr4-python3-runtime 4.9.3"
    assert "make setup" in check.remedy


def test_another_version_is_named_with_both(lock: Path) -> None:
    check = packages.check_packages(lock, versions(torch="2.14.0+cpu", numpy="2.3.5", **{"antlr4-python3-runtime": "4.9.3"}))
    assert check.status == "warn"
    assert "torch 2.14.0+cpu (locked: 2.13.0)" in check.detail


def test_no_lock_here(tmp_path: Path) -> None:
    assert packages.check_packages(tmp_path / "cpu.lock", versions()).status == "warn"


def test_torchvision_for_another_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert packages.check_unwanted(versions()).status == "ok"
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    check = packages.check_unwanted(versions(torchvision="0.28.0"))
    assert check.status == "fail"
    assert "operator torchvision::nms does not exist" in check.detail
    assert "uninstall" in check.remedy
