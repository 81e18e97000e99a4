"""From samples to batches: nothing lost, nothing twice, nothing misaligned."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.hidden_states import SampleRef
from draftyard.training.batches import Row, length_batches, load_batch, make_batch, plan_steps, split_micro, step_weights, usable_rows, without_loss
from tests.training.small import HIDDEN, named_samples, our_batch, write_data

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(3, 40), min_size=1, max_size=30)


def ref(number: int, length: int) -> SampleRef:
    return SampleRef(f"s{number}", "c", 0, f"train-{number // 4:05d}", number, length)


def rows_of(lengths: list[int]) -> list[Row]:
    return [Row(ref(number, length), length) for number, length in enumerate(lengths)]


def test_usable_rows_cut_the_long_and_name_the_short() -> None:
    refs = [ref(number, length) for number, length in enumerate([2, 3, 10, 11, 1])]
    rows, short, cut = usable_rows(refs, 10)
    assert [(row.ref.id, row.length) for row in rows] == [("s1", 3), ("s2", 10), ("s3", 10)]
    assert (short, cut) == (["s0/0", "s4/0"], 1)
    assert usable_rows([], 10) == ([], [], 0)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 60), st.integers(0, 3), st.integers(0, 3))
def test_every_sample_is_in_exactly_one_step_of_an_epoch(lengths: list[int], batch_tokens: int, seed: int, epoch: int) -> None:
    rows = rows_of(lengths)
    steps = plan_steps(rows, batch_tokens, seed, epoch)
    assert Counter(row.ref.id for step in steps for row in step) == Counter(row.ref.id for row in rows)
    for step in steps:
        assert len(step) == 1 or sum(row.length for row in step) <= batch_tokens
    for step, following in zip(steps, steps[1:], strict=False):  # no step is closed early
        assert sum(row.length for row in step) + following[0].length > batch_tokens
    assert rows == rows_of(lengths)  # the caller's order is left alone


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    rows = rows_of([5] * 40)
    order = [[row.ref.id for step in plan_steps(rows, 20, seed, epoch) for row in step] for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert order[0] == order[1]
    assert order[0] != order[2] != order[3] != order[0]
    assert order[0] != [row.ref.id for row in rows]
    assert order[0][:6] == ["s16", "s14", "s17", "s22", "s34", "s26"]  # the same on every machine and Python


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 120))
def test_micro_batches_hold_every_row_once_within_the_bound(lengths: list[int], micro: int) -> None:
    rows = rows_of(lengths)
    for groups in (split_micro(rows, micro), list(length_batches(rows, micro))):
        assert Counter(row.ref.id for group in groups for row in group) == Counter(row.ref.id for row in rows)
        for group in groups:
            assert group
            assert len(group) == 1 or len(group) * max(row.length for row in group) <= micro
    assert split_micro(rows[::-1], micro) == split_micro(rows, micro)  # whatever the order of the step


def test_a_batch_is_aligned_and_padded(tmp_path: Path) -> None:
    samples = named_samples("t", [9, 4, 6])
    batch = make_batch(samples, [7, 4, 6], 0.25, CPU, torch.float32)
    assert batch.real is not None
    assert batch.real.flat.tolist() == [*range(6), *range(6, 9), *range(12, 17)]
    assert batch.aux.shape == (3, 6, 3 * HIDDEN)
    for i, (sample, length) in enumerate(zip(samples, (7, 4, 6), strict=True)):
        for j in range(6):
            if j < length - 1:  # row j: token j + 1 beside the aux states of token j; target and weight are token j + 1's
                assert torch.equal(batch.aux[i, j], sample.aux[j])
                assert torch.equal(batch.last[i, j], sample.last[j + 1])
                assert batch.tokens[i, j] == sample.token_ids[j + 1]
                assert float(batch.target_weights(0)[i, j]) == (1.0 if sample.loss_mask[j + 1] else 0.25)
                assert float(batch.target_weights(1)[i, j]) == float(sample.loss_mask[j + 1])
            else:
                assert not batch.aux[i, j].any()
                assert not batch.last[i, j].any()
                assert batch.tokens[i, j] == batch.target_weights(0)[i, j] == batch.target_weights(1)[i, j] == 0


def test_a_loaded_batch_equals_the_one_padded_by_hand(tmp_path: Path) -> None:
    samples = named_samples("t", [9, 4, 6, 12])
    data = write_data(tmp_path, samples, samples[:1])
    rows, _, _ = usable_rows(data.refs("train"), 1 << 30)
    batch = load_batch(data, rows, 0.0, CPU, torch.float32)
    by_hand = our_batch([(s.aux, s.last, s.token_ids, s.loss_mask) for s in samples])
    for name in ("aux", "last", "tokens", "weights"):
        assert torch.equal(getattr(batch, name), getattr(by_hand, name)), name


@pytest.mark.parametrize("prompt_weight", [0.0, 0.3, 1.0])
def test_weights_summed_over_rows_are_those_of_the_batch(prompt_weight: float, tmp_path: Path) -> None:
    samples = named_samples("t", [9, 4, 6, 12, 3])
    data = write_data(tmp_path, samples, samples[:1])
    rows, _, _ = usable_rows(data.refs("train"), 8)
    batch = load_batch(data, rows, prompt_weight, CPU, torch.float32)
    expected = [float(batch.row_weights(k).sum()) for k in range(5)]
    assert step_weights(data, rows, prompt_weight, 5).tolist() == pytest.approx(expected)


def test_rows_without_a_loss_are_taken_out_and_named(tmp_path: Path) -> None:
    samples = named_samples("t", [30, 12, 30])  # answers begin at 10, 4 and 10
    data = write_data(tmp_path, samples, samples[:1])
    rows, _, _ = usable_rows(data.refs("train"), 10)  # cut before the answers of the first and the last
    kept, mute = without_loss(data, rows, 0.0)
    assert ([row.ref.id for row in kept], mute) == (["t1"], ["t0/0", "t2/0"])
    assert without_loss(data, rows, 0.1) == (rows, [])
    rows, _, _ = usable_rows(data.refs("train"), 11)
    assert without_loss(data, rows, 0.0) == (rows, [])


@pytest.mark.parametrize("step", range(6))
def test_a_batch_shorter_than_the_steps_keeps_its_shape(step: int) -> None:
    batch = make_batch(named_samples("s", [3, 3]), [3, 3], 1.0, torch.device("cpu"), torch.float32)  # two rows each
    tokens, weights = batch.shifted_tokens(step), batch.row_weights(step)
    assert tokens.shape == batch.tokens.shape
    assert weights.shape == batch.weights.shape
    assert torch.equal(tokens[:, : 2 - min(step, 2)], batch.tokens[:, step:])
    assert not tokens[:, 2 - min(step, 2) :].any()
