"""float8 storage: values against a table computed by hand from the format's definition, scales that are powers of two, nothing rounded twice."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftyard.artifacts.float8 import decode, encode

# Every finite magnitude of e4m3: subnormals k / 8 x 2^-6, then (1 + k / 8) x 2^e for e = -6..8; 480 would be NaN.
GRID = sorted({k / 8 * 2**-6 for k in range(8)} | {(1 + k / 8) * 2.0**e for e in range(-6, 9) for k in range(8)} - {480.0})


def nearest(value: float, largest: float) -> float:
    """The value that `value` should come back as, in a state whose largest magnitude is `largest`."""
    scale = 2.0 ** math.ceil(math.log2(largest / 448)) if largest else 1.0
    return math.copysign(scale * min(GRID, key=lambda magnitude: abs(abs(value) / scale - magnitude)), value)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-3e4, 3e4, width=16), min_size=8, max_size=8))
def test_every_value_comes_back_as_the_nearest_of_the_grid(values: list[float]) -> None:
    states = torch.tensor([values])
    back = decode(*encode(states, 2))
    assert back.dtype == torch.bfloat16
    for half in (slice(0, 4), slice(4, 8)):
        largest = max(map(abs, values[half]))
        for value, found in zip(values[half], back[0, half].tolist(), strict=True):
            assert abs(found - value) == pytest.approx(abs(nearest(value, largest) - value), rel=1e-6, abs=1e-12)


def test_a_scale_per_token_and_state() -> None:
    states = torch.tensor([[448.0, 1.0, 7.0, 0.0], [0.0, 0.0, 1e-3, 450.0]])
    stored, scales = encode(states, 2)
    assert stored.dtype == torch.float8_e4m3fn
    assert scales.tolist() == [[1.0, 2**-6], [1.0, 2.0]]  # 7 / 448 = 2^-6 exactly; 450 needs the next binade; zeros take 1
    assert decode(stored, scales).tolist() == [[448.0, 1.0, 7.0, 0.0], [0.0, 0.0, 0.0, 448.0]]  # 450 / 2 = 225 lies between 224 and 240


@pytest.mark.parametrize("magnitude", [1e-36, 1e-30, 1e30, 3e38])
def test_magnitudes_far_from_one_keep_their_precision(magnitude: float) -> None:
    states = torch.full((1, 4), magnitude)
    back = decode(*encode(states, 1)).to(torch.float32)
    assert torch.isfinite(back).all()
    assert ((back - states).abs() <= states / 16).all()


def test_relative_error_of_a_wide_state_is_that_of_three_bits_of_mantissa() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(64, 512, generator=generator)
    error = (decode(*encode(states, 1)).to(torch.float32) - states).norm() / states.norm()
    assert 0.02 < error < 0.03  # uniform rounding of a 1/16 relative step: 2^-4 / sqrt(12) x 1.44 (mean over a binade) = 0.026
