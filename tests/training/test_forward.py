"""The TTT forward against speculators' own, in float32 on small real models."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from speculators.losses import eager

from draftyard.training.forward import RealRows, TttForward
from draftyard.training.loss import TttBatch, ttt_loss
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


def test_padding_is_never_computed() -> None:
    samples = sample_tensors([20, 9, 15])
    padded = our_batch(samples)
    real = RealRows.of([19, 8, 14], 19, padded.aux.device)
    poisoned = padded.aux.clone()
    for sample, rows in enumerate((19, 8, 14)):
        poisoned[sample, rows:] = float("nan")
    found = []
    for batch in (padded, dataclasses.replace(padded, aux=poisoned, real=real)):
        model = small_model()
        result = ttt_loss(TttForward(model), batch, num_steps=3, decay=0.9)
        result.loss.backward()
        found.append((result, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (every, gradients), (packed, packed_gradients) = found
    assert packed.loss_sums == pytest.approx(every.loss_sums, rel=1e-5)
    assert packed.correct_sums == every.correct_sums
    assert set(packed_gradients) == set(gradients)
    for name, gradient in gradients.items():
        torch.testing.assert_close(packed_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_real_rows_are_packed_and_spread_again() -> None:
    real = RealRows.of([3, 1], 3, torch.device("cpu"))
    assert real.flat.tolist() == [0, 1, 2, 3]
    batch = torch.arange(12.0).view(2, 3, 2)
    packed = real.pack(batch)
    assert packed.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert real.spread(packed).tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [0, 0], [0, 0]]]
    assert real.pick(packed, torch.tensor([[2, 0], [0, 0]])).tolist() == [[[4, 5], [0, 1]], [[6, 7], [6, 7]]]


def test_autocast_to_bfloat16_trains() -> None:
    model = small_model()
    batch = our_batch(sample_tensors([23, 9]))
    exact = ttt_loss(TttForward(model), batch, num_steps=3, decay=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ttt_loss(TttForward(model), batch, num_steps=3, decay=1.0)
    result.loss.backward()
    assert result.loss.item() == pytest.approx(exact.loss.item(), rel=0.05)
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_prompt_rows_count_at_the_first_step_only() -> None:
    """Other weights for the later steps: the loss is linear in them, so it is put together from runs with one weight each."""
    model = small_model()
    samples = sample_tensors([23, 9, 12])
    answers = our_batch(samples)
    everything = TttBatch(answers.aux, answers.last, answers.tokens, torch.where(answers.last.abs().sum(-1) > 0, answers.weights.clamp_min(0.25), 0.0))
    mixed = TttBatch(answers.aux, answers.last, answers.tokens, everything.weights, answers.weights)
    ones = [1.0, 1.0, 1.0]

    def run(batch: TttBatch, steps: int) -> tuple[list[float], dict[str, torch.Tensor]]:
        model.zero_grad()
        result = ttt_loss(TttForward(model), batch, num_steps=steps, decay=0.8, denominator=ones)
        result.loss.backward()
        return result.loss_sums, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    first, gradient_first = run(everything, 1)
    later, gradient_later = run(answers, 3)
    _, gradient_not = run(answers, 1)
    found, gradient = run(mixed, 3)
    assert found == pytest.approx([first[0], *later[1:]], rel=1e-5)
    for name in gradient:
        expected = gradient_first[name] + gradient_later[name] - gradient_not[name]
        torch.testing.assert_close(gradient[name], expected, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("layers", [1, 2])
def test_accepted_rows_go_on_and_others_stop(layers: int) -> None:
    """With a vocabulary of 6 tokens one guess in six is right by chance. Expected values: every row computed, then masked by hand."""
    model = small_model(layers=layers, draft_vocab_size=6)
    batch = our_batch(sample_tensors([41, 23, 37]))
    states: list[torch.Tensor] = []
    TttForward(model).steps(batch.aux, lambda k, _: batch.shifted_tokens(k), 3, lambda k, normed: states.append(normed))
    last = batch.last * torch.rsqrt(batch.last.pow(2).mean(-1, keepdim=True) + model.verifier_norm.variance_epsilon) * model.verifier_norm.weight
    targets = torch.softmax(last @ model.verifier_lm_head.weight.T, -1)
    alive = torch.ones_like(batch.tokens, dtype=torch.bool)
    expected, survivors = [], []
    for k in range(3):
        drafted = torch.log_softmax(states[k] @ model.lm_head.weight.T, -1)
        wanted = torch.nn.functional.pad(targets[:, k:], (0, 0, 0, k), value=1.0)
        weights = torch.nn.functional.pad(batch.weights[:, k:], (0, k))
        divergence = (wanted * (wanted.log() - drafted)).sum(-1)
        expected.append(float((divergence * weights * alive).detach().sum()) / float(weights.sum()))
        survivors.append(int((alive & (weights > 0)).sum()))
        alive &= torch.where(weights > 0, drafted.argmax(-1) == wanted.argmax(-1), True)
    assert survivors[0] > survivors[1] > survivors[2] > 0
    full = ttt_loss(TttForward(model), batch, num_steps=3, decay=0.8)
    result = ttt_loss(TttForward(model), batch, num_steps=3, decay=0.8, accepted_only=True)
    assert [s / w for s, w in zip(result.loss_sums, result.weight_sums, strict=True)] == pytest.approx(expected, rel=1e-5)
    assert result.correct_sums == full.correct_sums
    assert result.loss.item() == pytest.approx(sum(0.8**k * value for k, value in enumerate(expected)), rel=1e-5)
    result.loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
