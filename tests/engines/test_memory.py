"""Memory is bounded by a shard: ten times the data, the same peak (Python's allocations, by tracemalloc; engines that answer at once)."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftyard.artifacts.generations import ARTIFACT, Generation, Turn, join_turns, read_split
from draftyard.artifacts.generations import write_shard as write_generations
from draftyard.artifacts.hidden_states import HiddenStates, write_index
from draftyard.artifacts.lineage import write_lineage
from draftyard.artifacts.prompts import Prompt, split_path, stream_split, write_prompts, write_prompts_lineage
from draftyard.draft.vocabulary import count_tokens
from draftyard.engines.extract import SplitCapture, extract_split
from draftyard.engines.generate import Answerer, GenerateReport, SplitPlan, generate_split
from draftyard.engines.recovery import Recovery
from tests.engines.test_extract import SeededEngine
from tests.engines.test_generate import Letters, LettersEngine, params

SMALL, LARGE = 80, 800
SHARD = 40
TEXT = "why is the sky blue in the morning and red at night"


class ForgetfulEngine(LettersEngine):
    """Keeps no record of what it was asked."""

    def add(self, request: Any) -> None:
        self.waiting.append(request)


class ForgetfulLetters(Letters):
    """Keeps no record of the options it was given."""

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        self.kwargs.clear()
        return super().apply_chat_template(messages, **options)


def peak(work: Callable[[], object]) -> int:
    """Bytes that Python allocated at most during `work`, beyond what it had."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def prompts(directory: Path, count: int) -> Path:
    made = (Prompt(id=f"p{number:06}", category="chat", system=None, turns=(f"{TEXT} {number}",)) for number in range(count))
    write_prompts(split_path(directory, "train"), made)
    write_prompts_lineage(directory, inputs={}, params={}, packages={}, facts={"train": count})
    return directory


def generations(directory: Path, count: int) -> Path:
    def make(number: int) -> Generation:
        turns = [Turn(prompt_token_ids=[3 + number % 500] * 20, output_token_ids=list(range(300, 320)), text=TEXT, finish_reason="stop")]
        token_ids, spans = join_turns(turns)
        return Generation(id=f"p{number:06}", category="chat", sample=0, turns=turns, token_ids=token_ids, loss_spans=spans)

    for shard, start in enumerate(range(0, count, SHARD)):
        write_generations(directory / f"train-{shard:05d}.jsonl", (make(number) for number in range(start, min(count, start + SHARD))))
    write_lineage(directory, ARTIFACT, inputs={}, params={}, packages={})
    return directory


def generate(source: Path, out: Path, count: int) -> None:
    answerer = Answerer(ForgetfulEngine(lambda ids: [ord("y")] * 20), ForgetfulLetters(), params(max_new_tokens=20, max_model_len=200))
    plan = SplitPlan(split="train", num_prompts=count, samples_per_shard=SHARD, params=answerer._params)
    report = GenerateReport()
    generate_split(answerer, plan, stream_split(source, "train"), out, recovery=Recovery(0, 0, "x"), report=report)
    assert report.conversations == count


def count_answers(source: Path, count: int) -> None:
    def spans() -> Iterator[list[int]]:
        for generation in read_split(source, "train"):
            yield from (generation.token_ids[start:end] for start, end in generation.loss_spans)

    assert count_tokens(spans(), 512).sum() == 20 * count


def capture(source: Path, out: Path, count: int) -> None:
    engine = SeededEngine()
    lengths = array("I", (len(g.token_ids) for g in read_split(source, "train")))
    plan = SplitCapture(split="train", lengths=lengths, bytes_per_token=48, shard_bytes=48 * 40 * SHARD, dtype="bfloat16")
    entries, _ = extract_split(engine, plan, read_split(source, "train"), out, recovery=Recovery(0, 0, "x"))
    write_index(out, aux_layer_ids=(1, 2, 3), hidden_size=6, dtype="bfloat16", splits={"train": entries})
    assert sum(lengths) == 40 * count


@pytest.mark.parametrize("step", ["generate", "count", "capture"])
def test_ten_times_the_data_takes_no_more_memory(step: str, tmp_path: Path) -> None:
    """But for the index of hidden states, whose entries of a few words each are what grows (measured below)."""
    peaks = []
    for count in (SHARD, SMALL, LARGE):  # the first one loads what is loaded once
        source, out = tmp_path / f"source{count}", tmp_path / f"out{count}"
        if step == "generate":
            prompts(source, count)
            peaks.append(peak(lambda source=source, out=out, count=count: generate(source, out, count)))  # type: ignore[misc]
        else:
            generations(source, count)
            work = count_answers if step == "count" else lambda source, count, out=out: capture(source, out, count)
            peaks.append(peak(lambda work=work, source=source, count=count: work(source, count)))  # type: ignore[misc]
    allowed = 400 * (LARGE - SMALL) if step == "capture" else 0
    assert peaks[2] < 1.25 * peaks[1] + allowed, peaks


def test_an_index_takes_few_bytes_per_sample(tmp_path: Path) -> None:
    capture(generations(tmp_path / "source", LARGE), tmp_path / "out", LARGE)
    assert (tmp_path / "out/index.json").stat().st_size < 40 * LARGE
    assert len(HiddenStates(tmp_path / "out").refs("train")) == LARGE
