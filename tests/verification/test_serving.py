"""The pure parts of the serving measurements: counting, comparing, timing with fake engines; and a child process that is no engine."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftyard.errors import DraftyardError
from draftyard.runtime import load_runtime
from draftyard.verification import serving
from draftyard.verification.serving import EngineProcess, ServedPrompt, compare_outputs, measure_acceptance, measure_speed, rates, warm_up
from draftyard.verification.simulation import Tally

ROOT = Path(__file__).parents[2]
PROMPTS = [ServedPrompt("a", "chat", [1, 2]), ServedPrompt("b", "code", [3]), ServedPrompt("c", "chat", [4])]


def test_rates_are_cumulative_and_conditional() -> None:
    made = rates(Tally(8, [6, 3, 0]), 2)
    assert made == {
        "prompts": 2,
        "acceptance_length": 1 + 9 / 8,
        "rounds": 8,
        "accepted": [6, 3, 0],
        "cumulative_rates": [0.75, 0.375, 0.0],
        "conditional_rates": [0.75, 0.5, 0.0],
    }


def test_rates_of_nothing() -> None:
    for tally in (Tally(0, [0, 0]), Tally(5, [0, 0])):
        made = rates(tally, 1)
        assert (made["acceptance_length"], made["cumulative_rates"], made["conditional_rates"]) == (1.0, [0.0, 0.0], [0.0, 0.0])
    assert rates(Tally(), 0)["cumulative_rates"] == rates(Tally(), 0)["conditional_rates"] == []


def test_acceptance_overall_and_by_category() -> None:
    made = measure_acceptance(PROMPTS, [[2, 0, 1], [0], []], 2)
    assert (made["overall"]["prompts"], made["overall"]["rounds"], made["overall"]["accepted"]) == (3, 4, [2, 1])
    assert made["overall"]["acceptance_length"] == 1.75
    assert {c: (v["prompts"], v["rounds"], v["accepted"]) for c, v in made["categories"].items()} == {"chat": (2, 3, [2, 1]), "code": (1, 1, [0, 0])}
    assert list(made["categories"]) == ["chat", "code"]
    assert [(row["rounds"], row["accepted"]) for row in made["samples"]] == [(3, [2, 1]), (1, [0, 0]), (0, [0, 0])]
    with pytest.raises(ValueError):
        measure_acceptance(PROMPTS, [[1]], 2)


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def test_a_divergence_names_prompt_position_texts_and_gap() -> None:
    asked: list[Any] = []

    def gap(ids: list[int], first: int, second: int) -> float:
        asked.append((ids, first, second))
        return 0.125

    made = compare_outputs(PROMPTS, [[5, 6, 7], [8], [9, 9]], [[5, 6, 7], [8], [9, 1, 2]], words, gap)
    assert (made["prompts"], made["equal"]) == (3, 2)
    assert made["divergences"] == [{"id": "c", "position": 1, "shared_text": "9", "plain_text": "9", "draft_text": "1 2", "logit_gap": 0.125}]
    assert asked == [([4, 9], 9, 1)]


@pytest.mark.parametrize(("plain", "draft", "position", "texts"), [([5, 6], [5], 1, ("6", "")), ([5], [5, 6], 1, ("", "6")), ([], [7], 0, ("", "7"))])
def test_an_output_that_ends_early_is_a_divergence_without_a_gap(plain: list[int], draft: list[int], position: int, texts: tuple[str, str]) -> None:
    def gap(*_: Any) -> float:
        raise AssertionError

    (found,) = compare_outputs(PROMPTS[:1], [plain], [draft], words, gap)["divergences"]
    assert (found["position"], (found["plain_text"], found["draft_text"]), found["logit_gap"]) == (position, texts, None)


class FakeEngine:
    def __init__(self, name: str, log: list[tuple[str, list[list[int]], int]], tokens_per_s: float) -> None:
        self.name, self.log, self.tokens_per_s = name, log, tokens_per_s

    def decode(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        self.log.append((self.name, prompts, max_tokens))
        self.tokens_per_s *= 1.25
        return {"outputs": [[0] * max_tokens for _ in prompts], "seconds": max_tokens / self.tokens_per_s}


def test_speed_is_interleaved_one_prompt_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[tuple[str, list[list[int]], int]] = []
    plain: Any = FakeEngine("plain", log, 10.0)
    draft: Any = FakeEngine("draft", log, 15.0)
    warm_up(plain, draft, PROMPTS[0])
    assert log == [("plain", [[1, 2]], 4), ("draft", [[1, 2]], 4)]
    log.clear()
    made = measure_speed(plain, draft, PROMPTS[:2], 8, 2)
    assert [(name, prompts) for name, prompts, _ in log] == [(name, [ids]) for _ in range(2) for ids in ([1, 2], [3]) for name in ("plain", "draft")]
    assert (made["batch"], made["prompts"], len(made["speedups"])) == (1, 2, 4)
    assert made["plain_tokens_per_s"] == pytest.approx([10 * 1.25 ** (n + 2) for n in range(4)])
    assert made["speedups"] == pytest.approx([1.5] * 4)
    assert made["speedup_median"] == pytest.approx(1.5)


# --- the child process ----------------------------------------------------------------------------------------------

WORKER = """
import json, os, sys
replies = os.fdopen(int(sys.argv[1]), "w")
config = json.loads(sys.stdin.readline())
print("worker speaks", flush=True)
if config["what"] == "dies":
    print("CUDA out of memory", flush=True)
    sys.exit(3)
print(json.dumps({"error": "it cannot"} if config["what"] == "refuses" else {"ready": True}), file=replies, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "gap":
        reply = {"gap": None if request["first"] == request["second"] else 0.5}
    else:
        reply = {"outputs": request["prompts"], "rounds": [], "seconds": 1.0}
    print(json.dumps(reply), file=replies, flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fake_worker.py").write_text(WORKER)
    monkeypatch.setattr(serving, "serving_worker", ModuleType("fake_worker"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    return tmp_path


def engine(what: str, directory: Path) -> EngineProcess:
    return EngineProcess("plain", {"what": what}, dataclasses.replace(load_runtime(ROOT), threads=1), directory / "logs")


def test_a_worker_answers_until_it_is_closed(worker: Path) -> None:
    made = engine("works", worker)
    assert [made.wait_ready(), made.wait_ready()] == [None, None]  # asked twice, it waits once
    long = [list(range(50_000))]
    assert made.decode(long, 4)["outputs"] == long
    assert made.logit_gap([1], 2, 3) == 0.5
    assert made.logit_gap([1], 2, 2) is None
    made.close()
    assert made._child.returncode == 0
    assert "worker speaks" in (worker / "logs/verify-plain.log").read_text()


def test_a_worker_that_cannot_start_says_why(worker: Path) -> None:
    made = engine("refuses", worker)
    assert [made.wait_ready(), made.wait_ready()] == ["it cannot", "it cannot"]
    made.close()


def test_a_worker_that_dies_is_told_with_its_last_words(worker: Path) -> None:
    made = engine("dies", worker)
    with pytest.raises(DraftyardError, match=r"the plain engine stopped answering; its last words \(.*/verify-plain\.log\):\n.*\n  CUDA out of memory"):
        made.wait_ready()
    with pytest.raises(DraftyardError, match="the plain engine stopped answering"):
        for _ in range(3):
            made.decode([[1]], 1)
    made.close()


def test_both_engines_end_when_the_measurement_fails(worker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineProcess] = []
    runtime = dataclasses.replace(load_runtime(ROOT), threads=1)
    with pytest.raises(ZeroDivisionError), serving.engines({"what": "works"}, {"what": "works"}, runtime, worker / "logs") as pair:
        seen.extend(pair)
        raise ZeroDivisionError
    assert [e._child.poll() for e in seen] == [0, 0]
    assert sys.executable == seen[0]._child.args[0]  # type: ignore[index]
