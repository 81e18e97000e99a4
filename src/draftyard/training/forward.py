"""The training-time-test forward of an EAGLE-3 draft, without a packed mask.

Shapes: B samples padded to S rows, H hidden size, A query heads, G key-value heads, D head_dim, V' draft vocabulary.
Row j of a sample holds token x[j+1] beside the states of x[j]; its first draft token is a guess of x[j+2]
(the alignment of speculators' eagle3 data: input_ids[1:], hidden_states[:-1]).

At step 0 a row attends to the rows up to itself. At step k its query comes from its own state of step k-1 and its
next token, and it attends to the step-0 keys of rows <= j and to its OWN keys of steps 1..k (EAGLE-3, arXiv 2503.01840,
section 3.2; speculators models/eagle3/attention.py builds the same pattern as a dense mask of (k+1) S x S blocks).
So only S x S + k scores per row exist, and they are all that is computed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


@dataclass(frozen=True)
class Rotary:
    """cos and sin of every position, [P, D] each."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def build(cls, model: Any, positions: int, device: torch.device) -> Rotary:
        """Tabulate the model's own rotary embedding for positions 0..positions-1."""
        ids = torch.arange(positions, device=device)[None]
        cos, sin = model.rotary_emb(torch.zeros(1, 1, 1, device=device), ids)
        return cls(cos[0], sin[0])

    def apply(self, x: Tensor, start: int) -> Tensor:
        """Rotate x [B, heads, S, D], whose row j is at position start + j."""
        cos, sin = self.cos[start : start + x.shape[2]], self.sin[start : start + x.shape[2]]
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + rotated * sin


@dataclass
class LayerCache:
    """Keys and values of one layer, [B, G, S, D] per step."""

    keys: list[Tensor]
    values: list[Tensor]


def attend(query: Tensor, cache: LayerCache, causal: Tensor, scale: float) -> Tensor:
    """Attention of query [B, A, S, D] over step 0 (causal [S, S], additive) and the row's own later steps.

    Returns [B, A, S, D].
    """
    batch, heads, rows, dim = query.shape
    groups = cache.keys[0].shape[1]
    share = heads // groups
    grouped = query.reshape(batch, groups, share * rows, dim)
    scores = (grouped @ cache.keys[0].transpose(-1, -2)).view(batch, groups, share, rows, rows) * scale + causal
    if len(cache.keys) == 1:
        return (torch.softmax(scores, dim=-1).view(batch, groups, share * rows, rows) @ cache.values[0]).reshape(batch, heads, rows, dim)
    by_group = query.view(batch, groups, share, rows, dim)
    own = torch.stack([(by_group * key[:, :, None]).sum(-1) for key in cache.keys[1:]], dim=-1) * scale  # (B, G, share, S, k)
    weights = torch.softmax(torch.cat((scores, own), dim=-1), dim=-1)
    out = (weights[..., :rows].reshape(batch, groups, share * rows, rows) @ cache.values[0]).view(batch, groups, share, rows, dim)
    for k, value in enumerate(cache.values[1:]):
        out = out + weights[..., rows + k, None] * value[:, :, None]
    return out.reshape(batch, heads, rows, dim)


class TttForward:
    """Runs an Eagle3DraftModel (speculators) step by step over a padded batch. Stateless between batches.

    The model's modules and parameters are used as they are; only the order of computation is ours.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        config = model.config.transformer_layer_config
        self.heads, self.groups, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.scale = self.head_dim**-0.5
        self._rotary: Rotary | None = None

    def fuse(self, aux: Tensor) -> Tensor:
        """fc of the aux states [B, S, 3H] -> [B, S, H]."""
        model = self.model
        if model.input_norm is not None:
            aux = model.input_norm(aux)
        if model.fc_norm is not None:
            aux = torch.cat([norm(chunk) for norm, chunk in zip(model.fc_norm, aux.chunk(len(model.fc_norm), dim=-1), strict=True)], dim=-1)
        return model.fc(aux)

    def steps(self, aux: Tensor, tokens_of_step: Callable[[int, Tensor | None], Tensor], num_steps: int, on_step: Callable[[int, Tensor], Tensor | None]) -> None:
        """Run `num_steps` steps.

        aux: [B, S, 3H]. tokens_of_step(k, previous): token ids [B, S] fed at step k; previous is what on_step(k - 1, ...)
        returned. on_step(k, states): gets the normalised states [B, S, H] that lm_head takes.
        """
        model = self.model
        rows = aux.shape[1]
        rotary = self._rotary_for(rows + num_steps + 1, aux.device)
        causal = torch.full((rows, rows), float("-inf"), dtype=aux.dtype, device=aux.device).triu(1)
        caches = [LayerCache([], []) for _ in model.layers]
        states = self.fuse(aux)
        previous: Tensor | None = None
        for k in range(num_steps):
            embeds = model.embed_tokens(tokens_of_step(k, previous)).to(states.dtype)
            for index, layer in enumerate(model.layers):
                states = self._layer(layer, embeds if index == 0 else None, states, caches[index], rotary, 1 + k, causal)
            normed = rms_norm(states, model.norm)
            if model.config.norm_output:
                states = normed
            previous = on_step(k, normed)

    def _layer(self, layer: Any, embeds: Tensor | None, states: Tensor, cache: LayerCache, rotary: Rotary, position: int, causal: Tensor) -> Tensor:
        """One decoder layer. The first (embeds given) reads [norm(embeds), norm(states)], 2H wide; others read norm(states)."""
        residual = states
        if embeds is not None:
            hidden = rms_norm(states, layer.hidden_norm)
            if layer.norm_before_residual:
                residual = hidden
            inputs = torch.cat((rms_norm(embeds, layer.input_layernorm), hidden), dim=-1)
        else:
            inputs = rms_norm(states, layer.input_layernorm)
        attention = layer.self_attn
        batch, rows, _ = inputs.shape
        query = attention.q_proj(inputs).view(batch, rows, self.heads, self.head_dim).transpose(1, 2)
        key = attention.k_proj(inputs).view(batch, rows, self.groups, self.head_dim).transpose(1, 2)
        value = attention.v_proj(inputs).view(batch, rows, self.groups, self.head_dim).transpose(1, 2)
        cache.keys.append(rotary.apply(key, position))
        cache.values.append(value)
        mixed = attend(rotary.apply(query, position), cache, causal, self.scale)
        states = residual + attention.o_proj(mixed.transpose(1, 2).reshape(batch, rows, self.heads * self.head_dim))
        return states + layer.mlp(rms_norm(states, layer.post_attention_layernorm))

    def _rotary_for(self, positions: int, device: torch.device) -> Rotary:
        if self._rotary is None or self._rotary.cos.shape[0] < positions or self._rotary.cos.device != device:
            self._rotary = Rotary.build(self.model, max(positions, 512), device)
        return self._rotary


def rms_norm(x: Tensor, norm: Any) -> Tensor:
    """The model's RMS norm `norm` through torch's fused kernel."""
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


class SoftTargetLoss(torch.autograd.Function):
    """Cross-entropy of draft logits against the verifier's distribution, with the gradient written out.

    forward(states [M, H], weight [V', H], targets [M, V'] probabilities, row_weights [M]) -> (sum of row_weights * CE, argmax [M] int64).
    d/dlogits of CE is softmax(logits) - targets; computing it in the forward keeps one [M, V'] buffer instead of four.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, row_weights: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = states @ weight.T
        best = logits.argmax(-1)
        log_sum = torch.logsumexp(logits.float(), dim=-1)
        loss = ((log_sum - torch.linalg.vecdot(targets, logits.float())) * row_weights).sum()
        probabilities = logits.sub_(log_sum[:, None].to(logits.dtype)).exp_()
        gradient = probabilities.sub_(targets.to(logits.dtype)).mul_(row_weights[:, None].to(logits.dtype))
        ctx.save_for_backward(states, weight, gradient)
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        states, weight, gradient = ctx.saved_tensors
        scaled = gradient * grads[0].to(gradient.dtype)  # autocast's dtype where it was on in the forward
        grad_states = (scaled @ weight.to(scaled.dtype)).to(states.dtype) if ctx.needs_input_grad[0] else None
        grad_weight = (scaled.T @ states.to(scaled.dtype)).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad_states, grad_weight, None, None


@dataclass(frozen=True)
class TttBatch:
    """A padded batch after the alignment shift.

    aux: [B, S, 3H]. last: [B, S, H], the verifier's last state of row j's token. tokens: int64 [B, S]. weights: float32 [B, S],
    the loss weight of a row whose target comes from that row's last state; 0 on padding.
    """

    aux: Tensor
    last: Tensor
    tokens: Tensor
    weights: Tensor

    def shifted_tokens(self, step: int) -> Tensor:
        """Teacher tokens of a step: row j gets the token of row j + step, 0 past the end."""
        return F.pad(self.tokens[:, step:], (0, step)) if step else self.tokens


@dataclass(frozen=True)
class TttResult:
    """Sums over a batch. loss: scalar with gradient; loss_sums, correct_sums, weight_sums: one per step; correct counts rows right at all steps up to k."""

    loss: Tensor
    loss_sums: list[float]
    correct_sums: list[float]
    weight_sums: list[float]


def ttt_loss(forward: TttForward, batch: TttBatch, *, num_steps: int, decay: float, denominator: list[float] | None = None) -> TttResult:
    """KL divergence from the verifier over the draft vocabulary, summed over TTT steps with weight decay ** k.

    Step k compares row j's logits with the verifier's distribution at row j + k (speculators models/eagle3/metrics.py,
    align_for_step). Each step's loss is the weighted mean over rows; `denominator` overrides the sum of weights per step, so
    that micro-batches of one optimizer step add up to the same loss as a single batch.
    """
    model = forward.model
    rows = batch.tokens.shape[1]
    with torch.no_grad():
        flat_weights = batch.weights.reshape(-1)
        used = flat_weights.nonzero()[:, 0]  # rows that serve as a target
        normed = rms_norm(batch.last.reshape(-1, batch.last.shape[-1])[used], model.verifier_norm)
        log_p = torch.log_softmax(F.linear(normed.to(model.verifier_lm_head.weight.dtype), model.verifier_lm_head.weight).float(), dim=-1)
        targets = log_p.exp()  # (U, V')
        entropy = -(targets * log_p).sum(-1)
        target_best = log_p.argmax(-1)
        row_of = used % rows
    loss = torch.zeros((), device=batch.aux.device)
    loss_sums: list[float] = []
    correct_sums: list[float] = []
    weight_sums: list[float] = []
    right_so_far = torch.ones_like(flat_weights, dtype=torch.bool)

    def on_step(k: int, states: Tensor) -> None:
        nonlocal loss
        keep = row_of >= k  # target row j + k needs row j
        index = used[keep]
        weights = flat_weights[index]
        source = index - k
        cross_entropy, best = SoftTargetLoss.apply(states.reshape(-1, states.shape[-1])[source], model.lm_head.weight, targets[keep], weights)
        divergence = cross_entropy - (entropy[keep] * weights).sum()
        total = float(weights.sum()) if denominator is None else denominator[k]
        loss = loss + (decay**k) * divergence / max(total, 1e-5)
        with torch.no_grad():
            right_so_far[source] &= best == target_best[keep]
            correct_sums.append(float((right_so_far[source] * weights).sum()))
            loss_sums.append(float(divergence))
            weight_sums.append(float(weights.sum()))

    forward.steps(batch.aux, lambda k, _: batch.shifted_tokens(k), num_steps, on_step)
    return TttResult(loss, loss_sums, correct_sums, weight_sums)
