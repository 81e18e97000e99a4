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
from torch.nn import functional as F


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

    def apply_at(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [B, heads, A, D], whose row a of sample b is at positions[b, a]."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]  # (B, 1, A, D)
        half = x.shape[-1] // 2
        rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return x * cos + rotated * sin


@dataclass(frozen=True)
class StepRows:
    """The rows that one step computes, a subset of the step before: what no loss asks for is left out.

    index: int64 [B, A], rows of each sample in order, padded with 0. valid: bool [B, A]. within: int64 [B, A], where each row
    stands among the rows of the step before (None at step 0).
    """

    index: Tensor
    valid: Tensor
    within: Tensor | None


@dataclass(frozen=True)
class RealRows:
    """The rows of a padded batch that hold tokens (N of B x S): what all rows go through is computed for these alone.

    flat: int64 [N], in order. place: int64 [B, S], where each row stands among them; padding, which no selection names, has the first row's.
    """

    flat: Tensor
    place: Tensor

    @classmethod
    def of(cls, lengths: list[int], width: int, device: torch.device) -> RealRows:
        """Samples of `lengths` rows, padded at their ends to `width`."""
        real = torch.arange(width) < torch.tensor(lengths)[:, None]
        place = (real.reshape(-1).to(torch.int64).cumsum(0) - 1).view_as(real)
        return cls(real.reshape(-1).nonzero()[:, 0].to(device), torch.where(real, place, 0).to(device))

    def pack(self, x: Tensor) -> Tensor:
        """x [B, S] or [B, S, C] -> [N] or [N, C]."""
        return x.flatten(0, 1).index_select(0, self.flat)

    def spread(self, x: Tensor) -> Tensor:
        """x [N, C] -> [B, S, C], 0 on padding."""
        return x.new_zeros(self.place.numel(), x.shape[-1]).index_copy(0, self.flat, x).view(*self.place.shape, x.shape[-1])

    def pick(self, x: Tensor, index: Tensor) -> Tensor:
        """x [N, C], index [B, A] of rows in the batch -> [B, A, C]."""
        return x.index_select(0, self.place.gather(1, index).reshape(-1)).view(*index.shape, x.shape[-1])


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """x [B, S, C], index [B, A] -> [B, A, C]."""
    base = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    return x.reshape(-1, x.shape[-1]).index_select(0, (base + index).reshape(-1)).view(*index.shape, x.shape[-1])


def select_rows(needed: Tensor, before: Tensor | None) -> StepRows:
    """The StepRows of the rows `needed`, bool [B, S]; `before`: those of the step before, of which `needed` is a subset (None at step 0)."""
    width = max(1, int(needed.sum(-1).max()))
    index = needed.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[:, :width]  # needed rows first, in order
    valid = needed.gather(1, index)
    index = torch.where(valid, index, 0)
    within = None
    if before is not None:
        place = (before.to(torch.int64).cumsum(-1) - 1).clamp_min(0)  # (B, S): place of each row among the rows before
        within = torch.where(valid, place.gather(1, index), 0)
    return StepRows(index, valid, within)


@dataclass
class LayerCache:
    """Keys and values of one layer: [B, G, S, D] of step 0, [B, G, A, D] of each later step."""

    keys: list[Tensor]
    values: list[Tensor]

    def narrow(self, within: Tensor) -> None:
        """Keep only the rows `within` [B, A] of the later steps."""
        for tensors in (self.keys, self.values):
            for k in range(1, len(tensors)):
                index = within[:, None, :, None].expand(-1, tensors[k].shape[1], -1, tensors[k].shape[3])
                tensors[k] = tensors[k].gather(2, index)


def attend(query: Tensor, cache: LayerCache, causal: Tensor, scale: float) -> Tensor:
    """Attention of query [B, heads, R, D] over step 0 (causal [R, S] or [B, 1, 1, R, S], additive) and the row's own later steps.

    Returns [B, heads, R, D].
    """
    batch, heads, rows, dim = query.shape
    groups, keys = cache.keys[0].shape[1:3]
    share = heads // groups
    grouped = query.reshape(batch, groups, share * rows, dim)
    scores = (grouped @ cache.keys[0].transpose(-1, -2)).view(batch, groups, share, rows, keys) * scale + causal
    if len(cache.keys) == 1:
        return (torch.softmax(scores, dim=-1).view(batch, groups, share * rows, keys) @ cache.values[0]).reshape(batch, heads, rows, dim)
    by_group = query.view(batch, groups, share, rows, dim)
    own = torch.stack([(by_group * key[:, :, None]).sum(-1) for key in cache.keys[1:]], dim=-1) * scale  # (B, G, share, R, k)
    weights = torch.softmax(torch.cat((scores, own), dim=-1), dim=-1)
    out = (weights[..., :keys].reshape(batch, groups, share * rows, keys) @ cache.values[0]).view(batch, groups, share, rows, dim)
    for k, value in enumerate(cache.values[1:]):
        out = out + weights[..., keys + k, None] * value[:, :, None]
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

    def steps(
        self,
        aux: Tensor,
        tokens_of_step: Callable[[int, Tensor | None], Tensor],
        num_steps: int,
        on_step: Callable[[int, Tensor], Tensor | None],
        rows: list[StepRows] | None = None,
        real: RealRows | None = None,
    ) -> None:
        """Run `num_steps` steps over all rows, or over those of `rows` (a single-layer draft only; A of them at step k, else A = S).

        rows[k] is read when step k begins, so that on_step(k - 1, ...) may append it. real: with rows, those that hold tokens (None: all).
        aux: [B, S, 3H]. tokens_of_step(k, previous): token ids fed at step k, [B, S] at step 0 and [B, A] later; previous is what
        on_step(k - 1, ...) returned. on_step(k, states): gets the normalised states [B, A, H] that lm_head takes.
        """
        model = self.model
        length = aux.shape[1]
        rotary = self._rotary_for(length + num_steps + 1, aux.device)
        every = torch.arange(length, device=aux.device)
        causal = torch.full((length, length), float("-inf"), dtype=aux.dtype, device=aux.device).triu(1)
        caches = [LayerCache([], []) for _ in model.layers]
        if rows is not None and real is None:
            real = RealRows.of([length] * len(aux), length, aux.device)
        packing = real if rows is not None else None
        states = self.fuse(aux if packing is None else packing.pack(aux))
        previous: Tensor | None = None
        for k in range(num_steps):
            here = None if rows is None else rows[k]
            if here is not None:
                if here.within is not None:
                    states = gather_rows(states, here.within)
                    caches[0].narrow(here.within)
                blocked = here.index[:, None, None, :, None] < every  # (B, 1, 1, A, S)
                causal = torch.zeros(blocked.shape, dtype=aux.dtype, device=aux.device).masked_fill_(blocked, float("-inf"))
            tokens = tokens_of_step(k, previous)
            embeds = model.embed_tokens(tokens if packing is None else packing.pack(tokens)).to(states.dtype)
            for index, layer in enumerate(model.layers):
                states = self._layer(layer, embeds if index == 0 else None, states, caches[index], rotary, k, causal, here, packing)
            normed = rms_norm(states, model.norm)
            if model.config.norm_output:
                states = normed
            previous = on_step(k, normed)
            packing = None  # the rows of later steps are selected ones, none of them padding

    def _layer(
        self,
        layer: Any,
        embeds: Tensor | None,
        states: Tensor,
        cache: LayerCache,
        rotary: Rotary,
        step: int,
        causal: Tensor,
        here: StepRows | None,
        packing: RealRows | None,
    ) -> Tensor:
        """One decoder layer. The first (embeds given) reads [norm(embeds), norm(states)], 2H wide; others read norm(states).

        Row j is at position j + 1 + step. At step 0 with selected rows, keys and values are made for all rows, the rest for those;
        states and embeds then hold the rows of `packing`, [N, H].
        """
        residual = states
        if embeds is not None:
            hidden = rms_norm(states, layer.hidden_norm)
            if layer.norm_before_residual:
                residual = hidden
            inputs = torch.cat((rms_norm(embeds, layer.input_layernorm), hidden), dim=-1)
        else:
            inputs = rms_norm(states, layer.input_layernorm)
        attention = layer.self_attn
        key, value = attention.k_proj(inputs), attention.v_proj(inputs)
        if packing is not None and here is not None:
            key, value = packing.spread(key), packing.spread(value)
            inputs, residual = packing.pick(inputs, here.index), packing.pick(residual, here.index)
        key, value = self._heads(key, self.groups), self._heads(value, self.groups)
        query = self._heads(attention.q_proj(inputs), self.heads)
        if here is None:
            query, key = rotary.apply(query, 1 + step), rotary.apply(key, 1 + step)
        else:
            query = rotary.apply_at(query, here.index + 1 + step)
            key = rotary.apply(key, 1) if step == 0 else rotary.apply_at(key, here.index + 1 + step)
        cache.keys.append(key)
        cache.values.append(value)
        mixed = attend(query, cache, causal, self.scale)  # (B, heads, A, D)
        states = residual + attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return states + layer.mlp(rms_norm(states, layer.post_attention_layernorm))

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """[B, A, heads * D] -> [B, heads, A, D]."""
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _rotary_for(self, positions: int, device: torch.device) -> Rotary:
        if self._rotary is None or self._rotary.cos.shape[0] < positions or self._rotary.cos.device != device:
            self._rotary = Rotary.build(self.model, max(positions, 512), device)
        return self._rotary


def rms_norm(x: Tensor, norm: Any) -> Tensor:
    """The model's RMS norm `norm` through torch's fused kernel."""
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
