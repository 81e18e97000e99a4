"""What the simulation makes of its rounds: speed by formula, bins, the recommended number of draft tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from draftyard.artifacts.files import canonical_json
from draftyard.errors import ArtifactError
from draftyard.params.verify import VerifyParams
from draftyard.runtime import Runtime, load_runtime
from draftyard.verification.run_simulation import by_position, cost_model, relative_speed, run_simulation, summarise
from draftyard.verification.simulation import Simulation, Tally
from tests.training.small import DRAFT_VOCAB, HIDDEN, named_samples, small_model, write_data

ROOT = Path(__file__).parents[2]
PARAMS = VerifyParams(num_speculative_tokens=2, simulate_up_to=4, served_prompts=None, speed_prompts=1, speed_repeats=1, reference=None)


@pytest.fixture
def runtime() -> Runtime:
    return dataclasses.replace(load_runtime(ROOT), threads=1)


def test_relative_speed_is_leviathans_formula() -> None:
    """Theorem 3.8: (1 - a^(k+1)) / ((1 - a)(k c + 1)) for acceptance rate a, cost c; the first part is the expected length."""
    alpha, cost, k = 0.7, 0.1, 3
    length = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert relative_speed(length, k, cost, 0.0) == pytest.approx(length / (k * cost + 1))
    assert relative_speed(1.0, 1, 0.0, 0.0) == 1.0
    assert relative_speed(2.0, 2, 0.1, 0.15) == pytest.approx(2 / 1.5)


def test_costs_count_the_weights_that_a_draft_step_reads() -> None:
    model = small_model()
    layer = 64 * 64 + 2 * 32 * 64 + 32 * 64 + 3 * 48 * 32 + 3 * 32  # q, k and v, o, MLP, norms
    used = layer + 3 * HIDDEN * HIDDEN + HIDDEN + DRAFT_VOCAB * HIDDEN  # fc, norm, lm_head
    costs = cost_model(model, 10 * used)
    assert (costs["draft_weights_per_step"], costs["draft_cost"], costs["verify_cost"]) == (used, pytest.approx(0.1), 0.0)


def test_rounds_are_binned_by_their_distance_and_none_is_lost() -> None:
    bins = by_position([(0, 1), (15, 2), (16, 0), (9000, 3), (200_000, 1)])
    assert bins == [
        {"from": 0, "to": 16, "rounds": 2, "acceptance_length": 2.5},
        {"from": 16, "to": 32, "rounds": 1, "acceptance_length": 1.0},
        {"from": 8192, "to": 16384, "rounds": 1, "acceptance_length": 4.0},
        {"from": 131072, "to": 262144, "rounds": 1, "acceptance_length": 2.0},
    ]
    assert by_position([]) == []


def simulated() -> Simulation:
    by_k = {1: Tally(10, [5]), 2: Tally(8, [5, 3]), 3: Tally(7, [5, 3, 1]), 4: Tally(7, [5, 3, 1, 0])}
    return Simulation(
        by_k, {"b": Tally(3, [2, 1]), "a": Tally(5, [3, 2])}, {"a": 2, "b": 1}, [(0, 1), (2, 0)], [(30, 1), (32, 0)], {("a", "x", 0): Tally(8, [5, 3])}
    )


@pytest.mark.parametrize(("draft_cost", "best"), [(0.0, 3), (0.3, 2), (5.0, 1)])
def test_the_recommended_number_of_draft_tokens_is_the_fastest(draft_cost: float, best: int) -> None:
    costs = {"draft_cost": draft_cost, "verify_cost": 0.0}
    made = summarise(simulated(), PARAMS, costs, 3)
    speeds = {row["k"]: row["relative_speed"] for row in made["by_k"]}
    lengths = {1: 1.5, 2: 2.0, 3: 1 + 9 / 7, 4: 1 + 9 / 7}
    assert speeds == pytest.approx({k: lengths[k] / (1 + k * draft_cost) for k in lengths})
    assert made["recommended_k"] == best
    assert (made["k"], made["rounds"], made["accepted"], made["acceptance_length"]) == (2, 8, [5, 3], 2.0)
    assert list(made["categories"]) == ["a", "b"]
    assert made["categories"]["a"] == {"prompts": 2, "acceptance_length": 2.0, "rounds": 5, "accepted": [3, 2]}
    assert [row["from"] for row in made["by_context"]] == [16, 32]
    assert made["samples"] == [{"id": "x", "sample": 0, "category": "a", "rounds": 8, "accepted": [5, 3]}]
    canonical_json(made)


def test_only_the_named_samples_are_simulated(tmp_path: Path, runtime: Runtime) -> None:
    data = write_data(tmp_path, named_samples("t", [5]), named_samples("h", [12, 18, 9]))
    model = small_model()
    made = run_simulation(model, data, {("h0", 0), ("h2", 0)}, 10**6, PARAMS, runtime)
    assert (made["prompts"], set(made["categories"])) == (2, {"c0"})
    assert [row["id"] for row in made["samples"]] == ["h0", "h2"]
    assert (sum(row["rounds"] for row in made["samples"]), sum(row["rounds"] for row in made["by_context"])) == (made["rounds"], made["rounds"])
    assert [row["k"] for row in made["by_k"]] == [1, 2, 3, 4]
    everything = run_simulation(model, data, {("h0", 0), ("h1", 0), ("h2", 0)}, 10**6, PARAMS, runtime)
    assert everything["rounds"] > made["rounds"]
    assert everything == run_simulation(model, data, {("h0", 0), ("h1", 0), ("h2", 0)}, 10**6, PARAMS, runtime)
    torch.set_num_threads(1)


def test_a_sample_without_states_is_named(tmp_path: Path, runtime: Runtime) -> None:
    data = write_data(tmp_path, named_samples("t", [5]), named_samples("h", [12]))
    with pytest.raises(ArtifactError, match=r"1 of 2 holdout samples have no states \(\[\('h7', 0\)\]\); run dvc repro hidden_states"):
        run_simulation(small_model(), data, {("h0", 0), ("h7", 0)}, 10**6, PARAMS, runtime)
    with pytest.raises(ArtifactError, match="0 of 0 holdout samples"):
        run_simulation(small_model(), data, set(), 10**6, PARAMS, runtime)
