"""float8 e4m3 with one power-of-two scale per token and state: half the bytes of bfloat16.

The largest magnitude of a state lands in (224, 448], at the top of e4m3 (3 bits of mantissa, smallest step 2^-9). The scale is a power of
two, so every stored value times its scale is a bfloat16 exactly: nothing is rounded a second time.
"""

from __future__ import annotations

import torch

MAX = 448.0
"""Largest finite value of float8_e4m3fn (OCP 8-bit floating point specification 1.0, table 1)."""
MIN_EXPONENT = -117
"""Of a scale: 2^-117 x the smallest step 2^-9 is bfloat16's smallest normal number."""


def encode(states: torch.Tensor, num_states: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round [N, num_states * H] to the nearest e4m3 under its scale. Returns float8_e4m3fn [N, num_states * H] and float32 scales [N, num_states]."""
    values = states.to(torch.float32).unflatten(1, (num_states, -1))  # (N, L, H)
    mantissa, exponent = torch.frexp(values.abs().amax(-1) / MAX)  # (N, L): mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(min=MIN_EXPONENT)
    scales = torch.ldexp(torch.ones_like(mantissa), exponent)
    scales = torch.where(mantissa == 0, 1.0, scales)
    return (values / scales[..., None]).to(torch.float8_e4m3fn).flatten(1), scales


def decode(states: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The bfloat16 [N, L * H] that float8 states [N, L * H] under float32 scales [N, L] stand for."""
    values = states.to(torch.float32).unflatten(1, (scales.shape[1], -1))
    return (values * scales[..., None]).to(torch.bfloat16).flatten(1)
