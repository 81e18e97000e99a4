"""The TTT forward against speculators' own, in float32 on small real models."""

from __future__ import annotations

import pytest
import torch
from speculators.losses import eager

from draftyard.training.forward import TttForward, ttt_loss
from tests.training.small import our_batch, sample_tensors, small_model


def reference(model, sample, num_steps: int, decay: float):
    aux, last, tokens, mask = sample
    _, loss, metrics = model(
        hidden_states=aux[None, :-1],
        input_ids=tokens[None, 1:],
        document_ids=torch.zeros(1, len(tokens) - 1, dtype=torch.long),
        loss_mask=mask[None, 1:],
        verifier_last_hidden_states=last[None, 1:],
        ttt_steps=num_steps,
        ttt_step_loss_decay=decay,
        loss_config={"kl_div": (eager.kl_div_loss, 1.0)},
    )
    return loss, metrics


VARIANTS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"norm_output": True},
    {"layers": 2},
    {"layers": 2, "norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "+".join(v) or "plain")
def test_losses_and_gradients_equal_speculators(variant) -> None:
    model = small_model(**variant)
    sample = sample_tensors([23])[0]
    expected, metrics = reference(model, sample, 4, 0.8)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    result = ttt_loss(TttForward(model), our_batch([sample]), num_steps=4, decay=0.8)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for k in range(4):
        ours = (0.8**k) * result.loss_sums[k] / result.weight_sums[k]
        assert ours == pytest.approx(float(metrics[f"loss_{k}_sum"]), rel=1e-4)
    assert set(gradients) == {name for name, p in model.named_parameters() if p.grad is not None}
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, gradients[name], rtol=1e-3, atol=1e-5, msg=name)


def test_a_padded_batch_equals_its_samples_alone() -> None:
    model = small_model()
    samples = sample_tensors([23, 9, 17, 4])
    together = ttt_loss(TttForward(model), our_batch(samples), num_steps=3, decay=1.0)
    alone = [ttt_loss(TttForward(model), our_batch([s]), num_steps=3, decay=1.0) for s in samples]
    for k in range(3):
        assert together.loss_sums[k] == pytest.approx(sum(r.loss_sums[k] for r in alone), rel=1e-5)
        assert together.weight_sums[k] == sum(r.weight_sums[k] for r in alone)
        assert together.correct_sums[k] == sum(r.correct_sums[k] for r in alone)


def test_autocast_to_bfloat16_trains() -> None:
    model = small_model()
    batch = our_batch(sample_tensors([23, 9]))
    exact = ttt_loss(TttForward(model), batch, num_steps=3, decay=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ttt_loss(TttForward(model), batch, num_steps=3, decay=1.0)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(exact.loss.item(), rel=0.05)
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
