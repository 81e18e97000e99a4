"""Which samples share a shard, what a captured sample must be, and shards that go on where they stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.files import digest_directory
from draftyard.artifacts.generations import Generation, Turn, join_turns
from draftyard.artifacts.hidden_states import HiddenStates, write_index, write_shard
from draftyard.engines.extract import SplitCapture, _check, extract_split, plan_shards
from draftyard.engines.recovery import Recovery
from draftyard.engines.requests import EngineFailure
from draftyard.errors import DraftyardError


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 8), st.integers(1, 300))
def test_shards_are_consecutive_full_and_within_the_bound(lengths: list[int], bytes_per_token: int, shard_bytes: int) -> None:
    ranges = plan_shards(lengths, bytes_per_token, shard_bytes)
    assert [i for part in ranges for i in part] == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in part) * bytes_per_token for part in ranges]
    for number, (part, size) in enumerate(zip(ranges, sizes, strict=True)):
        assert len(part) == 1 or size <= shard_bytes
        if number + 1 < len(ranges):  # not closed early
            assert size + lengths[part.stop] * bytes_per_token > shard_bytes


def test_examples() -> None:
    assert plan_shards([], 4, 100) == []
    assert plan_shards([10, 10, 10], 4, 80) == [range(2), range(2, 3)]
    assert plan_shards([100, 1, 100], 4, 80) == [range(1), range(1, 2), range(2, 3)]


def generation(name: str, prompt: list[int], output: list[int]) -> Generation:
    turns = [Turn(prompt_token_ids=prompt, output_token_ids=output, text="x", finish_reason="stop")]
    token_ids, spans = join_turns(turns)
    return Generation(id=name, category="chat", sample=2, turns=turns, token_ids=token_ids, loss_spans=spans)


G = generation("a", [1, 2, 3], [4, 5])
STATES = torch.arange(5 * 4 * 6, dtype=torch.float32).view(5, 4, 6)  # 5 tokens, 3 aux layers and the last, hidden 6


def test_a_captured_sample_keeps_its_rows_and_layers() -> None:
    sample = _check(STATES, torch.tensor(G.token_ids), G, 6, 4)
    for row in range(5):
        for layer in range(3):
            assert torch.equal(sample.aux[row, 6 * layer : 6 * layer + 6], STATES[row, layer])
        assert torch.equal(sample.last[row], STATES[row, 3])
    assert sample.loss_mask.tolist() == [False, False, False, True, True]
    assert (sample.id, sample.category, sample.sample) == ("a", "chat", 2)


@pytest.mark.parametrize(
    ("states", "tokens", "message"),
    [
        (STATES, [1, 2, 3, 4, 6], "sample a/2 belong to other tokens than were asked for"),
        (STATES[:4], [1, 2, 3, 4], "sample a/2 belong to other tokens"),
        (STATES[:4], G.token_ids, r"sample a/2 have shape \(4, 4, 6\), expected \(5, 4, 6\) \(tokens, states, hidden\)"),
        (STATES[:, :3], G.token_ids, r"expected \(5, 4, 6\)"),
        (STATES.masked_fill(STATES == 17, float("nan")), G.token_ids, "sample a/2 hold NaN or infinity"),
        (STATES.masked_fill(STATES == 17, float("inf")), G.token_ids, "sample a/2 hold NaN or infinity"),
    ],
)
def test_a_sample_that_is_not_what_was_asked_for_is_named(states: torch.Tensor, tokens: list[int], message: str) -> None:
    with pytest.raises(DraftyardError, match=message):
        _check(states, torch.tensor(tokens), G, 6, 4)


GENERATIONS = [generation(f"g{i}", [1] * (i + 1), [2] * 3) for i in range(5)]
LENGTHS = [len(g.token_ids) for g in GENERATIONS]


class SeededEngine:
    """States are a function of the sample's length. Stops before `stop_before`, dies on each of `deadly`."""

    def __init__(self, stop_before: str | None = None, deadly: tuple[str, ...] = ()) -> None:
        self.stop_before, self.deadly = stop_before, deadly
        self.captured: list[str] = []

    def capture_shard(self, generations: list[Generation], path: Path, dtype: str, on_tokens: Callable[[int], None]) -> dict[str, Any]:
        samples = []
        for g in generations:
            if g.id == self.stop_before:
                raise KeyboardInterrupt
            if g.id in self.deadly:
                raise EngineFailure("the engine was killed by SIGKILL")
            self.captured.append(g.id)
            generator = torch.Generator().manual_seed(len(g.token_ids))
            samples.append(_check(torch.randn(len(g.token_ids), 4, 6, generator=generator), torch.tensor(g.token_ids), g, 6, 4))
            on_tokens(len(g.token_ids))
        return write_shard(path, samples, dtype)


def extracted(directory: Path, engine: SeededEngine, allowed: int = 0) -> tuple[int, list[str]]:
    """Number of resumed shards, names of skipped samples."""
    plan = SplitCapture(split="train", lengths=LENGTHS, bytes_per_token=4 * 6 * 2, shard_bytes=4 * 6 * 2 * 10, dtype="bfloat16")
    recovery = Recovery(5, allowed, "hidden_states.max_skipped_fraction=0.2")
    entries, resumed = extract_split(engine, plan, iter(GENERATIONS), directory, recovery=recovery)
    write_index(directory, aux_layer_ids=(1, 2, 3), hidden_size=6, dtype="bfloat16", splits={"train": entries})
    return resumed, [name for entry in entries for name in entry.get("skipped", ())]


def test_a_killed_extraction_goes_on_after_its_last_shard_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    engine = SeededEngine()
    assert extracted(tmp_path / "plain", engine) == (0, [])
    assert engine.captured == [g.id for g in GENERATIONS]
    data = HiddenStates(tmp_path / "plain")
    assert [ref.id for ref in data.refs("train")] == engine.captured
    assert [len(data.load(ref).token_ids) for ref in data.refs("train")] == LENGTHS
    assert len({ref.file for ref in data.refs("train")}) == 4  # 4 + 5 tokens, then 6, 7, 8: at most 10 a shard
    with pytest.raises(KeyboardInterrupt):
        extracted(tmp_path / "killed", SeededEngine(stop_before="g3"))
    again = SeededEngine()
    assert extracted(tmp_path / "killed", again) == (2, [])
    assert again.captured == ["g3", "g4"]
    assert digest_directory(tmp_path / "killed") == digest_directory(tmp_path / "plain")


def test_a_sample_that_kills_the_engine_is_left_out_and_named_also_after_a_resume(tmp_path: Path) -> None:
    assert extracted(tmp_path, SeededEngine(deadly=("g1",)), allowed=1) == (0, ["g1/2"])
    assert [ref.id for ref in HiddenStates(tmp_path).refs("train")] == ["g0", "g2", "g3", "g4"]
    assert extracted(tmp_path, SeededEngine(deadly=("g1",))) == (4, ["g1/2"])


def test_more_deadly_samples_than_allowed_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DraftyardError, match=r"fails on 1 samples, each by itself \(g1/2\); hidden_states.max_skipped_fraction=0.2 allows 0"):
        extracted(tmp_path, SeededEngine(deadly=("g1",)))


def test_a_shard_of_nothing_but_deadly_samples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DraftyardError, match=r"the engine fails on every sample of train-00001\.safetensors"):
        extracted(tmp_path, SeededEngine(deadly=("g2",)), allowed=5)
