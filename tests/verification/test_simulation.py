"""The simulation against a drafter that decodes one round after the other, and the walk against small tables."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from draftyard.artifacts.hidden_states import Sample
from draftyard.training.batches import usable_rows
from draftyard.training.forward import TttForward
from draftyard.verification.simulation import Tally, answer_start, draft_matches, simulate, walk
from tests.training.small import HIDDEN, VOCAB, small_model, write_data
from tests.verification.sequential_drafter import serve, write_text

K = 4
CPU = torch.device("cpu")
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True, "norm_output": True},
    {"layers": 2},
    {"layers": 2, "norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    {"draft_vocab_size": VOCAB},
    {"seed": 11, "num_key_value_heads": 4, "head_dim": 6},
]


def drafted_samples(model: Any, lengths: list[int], seed: int) -> list[Sample]:
    """Samples on which the model's rounds accept every number of tokens 0..K; answers begin at different places."""
    generator, choice = torch.Generator().manual_seed(seed), random.Random(seed)
    samples = []
    for number, length in enumerate(lengths):
        aux = torch.randn(length, 3 * HIDDEN, generator=generator)
        prompt = [choice.randrange(VOCAB) for _ in range(2 + number % 5)]
        text = write_text(model, prompt, aux, lambda: choice.randint(0, K), K, VOCAB)
        samples.append(
            Sample(
                id=f"s{number}",
                category=f"c{number % 3}",
                sample=number,
                aux=aux,
                last=torch.zeros(length, HIDDEN),
                token_ids=torch.tensor(text),
                loss_mask=torch.arange(length) >= len(prompt),
            )
        )
    return samples


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "+".join(v) or "plain")
def test_rounds_and_accepted_tokens_equal_the_sequential_drafter(variant: dict[str, Any], tmp_path: Path) -> None:
    model = small_model(**variant)
    samples = drafted_samples(model, [25, 14, 19, 8, 3, 22], seed=1)
    data = write_data(tmp_path, samples[:1], samples)
    rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
    result = simulate(model, data, rows, k=3, max_k=K, micro_tokens=60, device=CPU)
    expected = {k: {s.id: serve(model, s.token_ids.tolist(), s.aux, answer_start(s), k) for s in samples} for k in range(1, K + 1)}
    for k, by_sample in expected.items():
        rounds = [r.accepted for rounds in by_sample.values() for r in rounds]
        assert result.by_k[k].rounds == len(rounds)
        assert result.by_k[k].accepted == [sum(n > i for n in rounds) for i in range(k)]
        assert result.by_k[k].acceptance_length == pytest.approx(1 + sum(rounds) / len(rounds))
    assert {r.accepted for rounds in expected[K].values() for r in rounds} == set(range(K + 1))  # the texts do test every length
    for category in ("c0", "c1", "c2"):
        rounds = [r.accepted for s in samples if s.category == category for r in expected[3][s.id]]
        assert (result.categories[category].rounds, sum(result.categories[category].accepted)) == (len(rounds), sum(rounds))
    assert result.category_prompts == {"c0": 2, "c1": 2, "c2": 2}
    positions = Counter((r.position - answer_start(s), r.accepted) for s in samples for r in expected[3][s.id])
    assert Counter(result.positions) == positions


def test_every_position_is_a_round_of_its_own() -> None:
    """Not only the rounds that the walk visits: the proposals at every row are those of a drafter that starts there."""
    model = small_model()
    (sample,) = drafted_samples(model, [18], seed=2)
    matches = draft_matches(TttForward(model), [sample], K, CPU)[0]
    text = sample.token_ids.tolist()
    for row in range(17):
        rounds = serve(model, text, sample.aux, row + 1, K)  # row j holds token j + 1
        length = int(matches[row].to(torch.int64).cumprod(-1).sum())
        assert length == (rounds[0].accepted if rounds else 0)


def test_batches_do_not_change_the_figures(tmp_path: Path) -> None:
    model = small_model(seed=5)
    samples = drafted_samples(model, [25, 14, 19, 8, 3, 22], seed=3)
    data = write_data(tmp_path, samples[:1], samples)
    rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
    one, many = (simulate(model, data, rows, k=2, max_k=K, micro_tokens=size, device=CPU) for size in (1, 10_000))
    assert one.by_k == many.by_k
    assert one.categories == many.categories
    assert sorted(one.positions) == sorted(many.positions)


def test_what_lies_behind_the_text_is_never_accepted() -> None:
    model = small_model()
    samples = drafted_samples(model, [12, 5], seed=4)
    matches = draft_matches(TttForward(model), samples, K, CPU)
    for number, length in enumerate((12, 5)):
        for i in range(K):
            assert not matches[number, max(length - 2 - i, 0) :, i].any()


# --- the walk -------------------------------------------------------------------------------------------------------


def walked(lengths: list[int], start: int, end: int, k: int, columns: int) -> list[tuple[int, int]]:
    matches = torch.tensor([[i < length for i in range(columns)] for length in lengths])
    rounds: list[tuple[int, int]] = []
    walk(matches, start, end, k, lambda row, accepted: rounds.append((row, accepted)))
    return rounds


def test_a_round_jumps_past_what_it_accepted_and_the_bonus_token() -> None:
    assert walked([9, 2, 9, 9, 0, 3, 9, 9, 9], start=1, end=8, k=3, columns=3) == [(1, 2), (4, 0), (5, 3)]
    assert walked([0, 0, 0, 0], start=0, end=3, k=1, columns=4) == [(0, 0), (1, 0), (2, 0)]
    assert walked([4, 4, 4, 4], start=0, end=4, k=1, columns=4) == [(0, 1), (2, 1)]
    assert walked([0, 0], start=2, end=2, k=1, columns=1) == []


def test_a_gap_ends_the_accepted_prefix() -> None:
    rounds: list[tuple[int, int]] = []
    walk(torch.tensor([[True, False, True], [False, True, True]]), 0, 2, 3, lambda row, accepted: rounds.append((row, accepted)))
    assert rounds == [(0, 1)]


def test_tallies_count_as_vllm_does() -> None:
    tally = Tally()
    assert tally.acceptance_length == 1.0
    for length in (0, 3, 1):
        tally.add(length, 3)
    assert (tally.rounds, tally.accepted, tally.acceptance_length) == (3, [2, 1, 1], pytest.approx(1 + 4 / 3))
    other = Tally()
    other.add(5, 5)
    tally.merge(other)
    assert (tally.rounds, tally.accepted) == (4, [3, 2, 2, 1, 1])
    other.merge(Tally())
    assert (other.rounds, other.accepted) == (1, [1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("mask", "start"),
    [([0, 0, 1, 1], 2), ([0, 1, 1, 0, 0, 1], 5), ([1, 1, 1], 0), ([1, 0, 1], 2), ([0, 0, 0], 3), ([0, 0, 1, 0], 2)],
)
def test_the_last_answer_begins_where_its_span_does(mask: list[int], start: int) -> None:
    tokens = torch.zeros(len(mask), dtype=torch.int64)
    states = torch.zeros(len(mask), 1)
    sample = Sample(id="a", category="c", sample=0, aux=states, last=states, token_ids=tokens, loss_mask=torch.tensor(mask, dtype=torch.bool))
    assert answer_start(sample) == start


def test_only_the_last_answer_of_a_conversation_is_walked(tmp_path: Path) -> None:
    model = small_model()
    (sample,) = drafted_samples(model, [20], seed=6)
    mask = torch.tensor([False] * 3 + [True] * 5 + [False] * 4 + [True] * 8)
    conversation = Sample(**{**sample.__dict__, "loss_mask": mask})
    data = write_data(tmp_path, [sample], [conversation])
    rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
    result = simulate(model, data, rows, k=2, max_k=2, micro_tokens=100, device=CPU)
    expected = serve(model, sample.token_ids.tolist(), sample.aux, 12, 2)
    assert result.positions == [(r.position - 12, r.accepted) for r in expected]
    assert result.contexts == [(r.position + 1, r.accepted) for r in expected]
    assert [(t.rounds, sum(t.accepted)) for t in result.samples.values()] == [(len(expected), sum(r.accepted for r in expected))]
    assert result.by_k[2].rounds == len(expected)


@pytest.mark.parametrize("variant", [*VARIANTS[:3], {"layers": 2}], ids=lambda v: "+".join(v) or "plain")
def test_rows_that_nobody_asks_for_change_nothing(variant: dict[str, Any]) -> None:
    model = small_model(**variant)
    samples = drafted_samples(model, [25, 14, 3, 22], seed=3)
    starts = [9, 0, 2, 21]  # the third sample has rows 0 and 1 only
    every, asked = draft_matches(TttForward(model), samples, K, CPU), draft_matches(TttForward(model), samples, K, CPU, starts)
    assert every.any()
    for sample, start in enumerate(starts):
        assert torch.equal(asked[sample, start:], every[sample, start:])
        if len(model.layers) == 1:
            assert not asked[sample, :start].any()


def test_a_sample_without_an_answer_has_no_round(tmp_path: Path) -> None:
    model = small_model()
    (sample,) = drafted_samples(model, [10], seed=6)
    data = write_data(tmp_path, [sample], [Sample(**{**sample.__dict__, "loss_mask": torch.zeros(10, dtype=torch.bool)})])
    rows, _, _ = usable_rows(data.refs("holdout"), 1 << 30)
    assert simulate(model, data, rows, k=2, max_k=2, micro_tokens=100, device=CPU).by_k[2] == Tally()
