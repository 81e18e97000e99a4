"""CPU features, memory and quotas from the texts that Linux gives, and the dtype that follows."""

from __future__ import annotations

import platform
import sys
import types
from pathlib import Path

import pytest

from draftyard import hardware

# Excerpts of /proc/cpuinfo: an AMD EPYC of the Zen 3 kind, an Intel Sapphire Rapids, an Arm Neoverse V1.
ZEN3 = "processor\t: 0\nflags\t\t: fpu sse2 fma avx avx2 sha_ni vaes\nbogomips\t: 4890\n\nprocessor\t: 1\nflags\t\t: fpu sse2 fma avx avx2 sha_ni vaes\n"
SAPPHIRE_RAPIDS = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
SKYLAKE = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512vl\n"
NEOVERSE = "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\n"


def test_flags_are_read_in_both_spellings() -> None:
    assert hardware.parse_cpu_flags(ZEN3) == {"fpu", "sse2", "fma", "avx", "avx2", "sha_ni", "vaes"}
    assert "bf16" in hardware.parse_cpu_flags(NEOVERSE)
    assert hardware.parse_cpu_flags("") == frozenset()


def test_only_flags_of_every_core_count() -> None:
    mixed = "flags\t: avx2 avx512f\n\nflags\t: avx2\n"
    assert hardware.parse_cpu_flags(mixed) == {"avx2"}


@pytest.mark.parametrize(("cpuinfo", "dtype"), [(ZEN3, "float32"), (SKYLAKE, "float32"), (SAPPHIRE_RAPIDS, "bfloat16"), (NEOVERSE, "bfloat16")])
def test_cpu_dtype_follows_the_bf16_units(monkeypatch: pytest.MonkeyPatch, cpuinfo: str, dtype: str) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: hardware.parse_cpu_flags(cpuinfo))
    chosen, reason = hardware.choose_compute_dtype("cpu")
    assert chosen == dtype
    assert hardware.has_bf16_hardware() == (dtype == "bfloat16")
    assert "bfloat16" in reason


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_gpu_dtype_follows_the_compute_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: str) -> None:
    fake = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_capability=lambda device: capability))
    monkeypatch.setitem(sys.modules, "torch", fake)
    chosen, reason = hardware.choose_compute_dtype("cuda:0")
    assert chosen == dtype
    assert f"{capability[0]}.{capability[1]}" in reason


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="tpu"):
        hardware.choose_compute_dtype("tpu")


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "extension"),
    [
        (ZEN3, "x86_64", "_C_AVX2"),
        (SKYLAKE, "x86_64", "_C_AVX512"),
        (SAPPHIRE_RAPIDS, "x86_64", "_C"),
        (NEOVERSE, "aarch64", "_C"),
        ("flags\t: sse2\n", "x86_64", None),
    ],
)
def test_vllm_extension_that_fits(cpuinfo: str, machine: str, extension: str | None) -> None:
    assert hardware.vllm_cpu_extension(hardware.parse_cpu_flags(cpuinfo), machine) == extension


def test_flags_agree_with_torch() -> None:
    """torch asks the processor itself; vLLM chooses its extension by torch's answer."""
    import torch

    if not hardware.cpu_flags():
        pytest.skip("no /proc/cpuinfo here")
    assert torch.cpu._is_avx512_supported() == ("avx512f" in hardware.cpu_flags())
    assert torch.cpu._is_avx512_bf16_supported() == ("avx512_bf16" in hardware.cpu_flags())


def test_openmp_library_lies_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert hardware.openmp_library() is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    assert hardware.openmp_library() == tmp_path / "lib" / "libiomp5.so"


@pytest.mark.parametrize(("text", "cores"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("rubbish", None)])
def test_cpu_quota(tmp_path: Path, text: str, cores: float | None) -> None:
    path = tmp_path / "cpu.max"
    assert hardware.cpu_quota(path) is None
    path.write_text(text)
    assert hardware.cpu_quota(path) == cores


def test_available_memory_is_the_lesser_of_machine_and_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24000000 kB\nMemAvailable:    1000000 kB\n")
    assert hardware.available_memory(meminfo, tmp_path) == 1_024_000_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100000000\n")
    assert hardware.available_memory(meminfo, tmp_path) == 1_024_000_000
    (tmp_path / "memory.max").write_text("300000000\n")
    assert hardware.available_memory(meminfo, tmp_path) == 200_000_000


def test_no_gpu_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.nvidia_gpus() == []
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\n")
    command.chmod(0o755)
    assert hardware.nvidia_gpus() == ["NVIDIA H200, 143771 MiB"]
    command.write_text("#!/bin/sh\nexit 9\n")
    assert hardware.nvidia_gpus() == []


def test_the_cpu_is_named_and_the_host_is_not(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Some CPU @ 2 GHz\n")
    assert hardware.cpu_name(tmp_path / "cpuinfo") == "Some CPU @ 2 GHz"
    assert hardware.cpu_name(tmp_path / "absent") == platform.machine()
    found = hardware.machine()
    assert found["cores"] >= 1
    assert platform.node() not in str(found)
