"""A sweep pays for what it changes and for nothing else: real `dvc exp run --queue` over the real graph, with stand-ins for the stages' commands."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest

from tests.pipeline.test_reruns import ALL, FROM_TRAIN, PARAMS, write_stub_repository
from tests.pipeline.tiny_repo import ROOT, commit, environment

VALUES = tuple(str(PARAMS["train"]["seed"] + number) for number in (101, 102, 103))  # none is the one that is built first


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Counter[str], Counter[str]]:
    """How often each stage ran: in the first build, and in a queued sweep of three seeds after it."""
    base = tmp_path_factory.mktemp("sweep")
    root, ran = base / "repository", base / "ran"
    root.mkdir()
    write_stub_repository(root)
    variables = {**environment(ROOT), "STUB_RAN": str(ran)}

    def dvc(*arguments: str) -> str:
        """Output through a file: DVC's worker inherits a pipe and holds it open for a minute after its last experiment."""
        with (base / "said").open("w+") as said:
            command = ["dvc", *arguments]
            status = subprocess.run(command, cwd=root, env=variables, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False, timeout=1800).returncode
            said.seek(0)
            text = said.read()
        assert status == 0, f"dvc {' '.join(arguments)}\n{text[-3000:]}"
        return text

    def counted() -> Counter[str]:
        counts = Counter(ran.read_text().split())
        ran.unlink()
        return counts

    dvc("repro", "--quiet")
    commit(root, "built")
    first = counted()
    dvc("exp", "run", "--queue", "-S", f"train.seed={','.join(VALUES)}")
    dvc("exp", "run", "--run-all")
    dvc("queue", "stop")  # the idle worker
    listed = dvc("exp", "show", "--csv")
    assert all(f",{value}," in listed for value in VALUES), listed
    return first, counted()


@pytest.mark.slow
def test_the_first_build_runs_every_stage_once(sweep: tuple[Counter[str], Counter[str]]) -> None:
    assert sweep[0] == Counter(ALL)


@pytest.mark.slow
def test_a_sweep_of_n_values_trains_n_times_and_extracts_never_again(sweep: tuple[Counter[str], Counter[str]]) -> None:
    """Hidden states are captured once for the build and its N experiments; what follows from training runs N times."""
    assert sweep[1] == Counter({stage: len(VALUES) for stage in FROM_TRAIN})
    assert (sweep[0] + sweep[1])["hidden_states"] == 1
