"""What vLLM finds in its environment when its interpreter starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftyard.engines import environment
from draftyard.engines.environment import engine_environment
from draftyard.runtime import load_runtime

RUNTIME = load_runtime(Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, "/lib/libiomp5.so"),
        ("/lib/libiomp5.so", "/lib/libiomp5.so"),
        ("/x/libtcmalloc_minimal.so.4:/x/libgomp-1a2b.so.1.0.0", "/lib/libiomp5.so /x/libtcmalloc_minimal.so.4"),
        ("/x/libomp.so /x/libjemalloc.so", "/lib/libiomp5.so /x/libjemalloc.so"),
    ],
)
def test_one_openmp_runtime_is_preloaded_and_the_rest_of_the_list_kept(
    before: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "openmp_library", lambda: Path("/lib/libiomp5.so"))
    if before is None:
        monkeypatch.delenv("LD_PRELOAD", raising=False)
    else:
        monkeypatch.setenv("LD_PRELOAD", before)
    assert engine_environment(RUNTIME, tmp_path / "engine.log")["LD_PRELOAD"] == expected


def test_without_intels_openmp_the_list_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "openmp_library", lambda: None)
    monkeypatch.setenv("LD_PRELOAD", "/x/libgomp.so.1")
    assert engine_environment(RUNTIME, tmp_path / "engine.log")["LD_PRELOAD"] == "/x/libgomp.so.1"
