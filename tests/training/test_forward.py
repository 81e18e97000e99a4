"""The TTT forward against speculators' own, in float32 on small real models."""

from __future__ import annotations

import pytest
import torch
from speculators.losses import eager

from draftyard.draft.geometry import DraftGeometry
from draftyard.draft.model import build_config, build_model
from draftyard.training.forward import TttBatch, TttForward, ttt_loss

VOCAB, HIDDEN = 96, 32


def small_model(*, layers: int = 1, norm_before_residual: bool = False, norm_before_fc: bool = False, norm_output: bool = False, seed: int = 3):
    geometry = DraftGeometry(
        model_type="llama", hidden_size=HIDDEN, target_hidden_size=HIDDEN, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=48, vocab_size=VOCAB, draft_vocab_size=40, aux_layer_ids=(1, 2, 3), rope_theta=10000.0, rms_norm_eps=1e-5, max_position_embeddings=128,
        norm_before_residual=norm_before_residual, norm_before_fc=norm_before_fc, fc_norm=False, norm_output=norm_output, attention_bias=False, mlp_bias=False, dtype="float32",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(VOCAB, generator=generator)[:40].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[chosen] = True
    model = build_model(
        build_config(geometry, "verifier", "LlamaForCausalLM", 3),
        d2t=chosen - torch.arange(40),
        t2d=t2d,
        embed_tokens=torch.randn(VOCAB, HIDDEN, generator=generator),
        lm_head=torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3,
        norm=torch.rand(HIDDEN, generator=generator) + 0.5,
        trainable_lm_head=True,
        seed=seed,
    )
    with torch.no_grad():  # large weights, so that attention is far from uniform and every step matters
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and name.startswith(("layers", "fc")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.25)
    return model


def sample_tensors(lengths: list[int], seed: int = 5):
    generator = torch.Generator().manual_seed(seed)
    samples = []
    for length in lengths:
        aux = torch.randn(length, 3 * HIDDEN, generator=generator)
        last = torch.randn(length, HIDDEN, generator=generator)
        tokens = torch.randint(0, VOCAB, (length,), generator=generator)
        mask = torch.rand(length, generator=generator) < 0.7
        samples.append((aux, last, tokens, mask))
    return samples


def our_batch(samples) -> TttBatch:
    rows = max(len(s[2]) for s in samples) - 1
    aux, last = torch.zeros(len(samples), rows, 3 * HIDDEN), torch.zeros(len(samples), rows, HIDDEN)
    tokens, weights = torch.zeros(len(samples), rows, dtype=torch.int64), torch.zeros(len(samples), rows)
    for i, (a, l, t, m) in enumerate(samples):
        n = len(t) - 1
        aux[i, :n], last[i, :n], tokens[i, :n], weights[i, :n] = a[:-1], l[1:], t[1:], m[1:].float()
    return TttBatch(aux, last, tokens, weights)


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
    assert float(result.loss) == pytest.approx(float(expected), rel=1e-4)
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
    assert float(result.loss) == pytest.approx(float(exact.loss), rel=0.05)
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
