"""Recurrent layers and attention written from their cells: PyTorch's own do not run under vmap, or
draw their dropout from a generator that no key can set.

A layer is turned into its counterpart here in place: it keeps its parameters and their names.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.draws import KeyedDropout
from coterie.core.errors import BadInput

Layer = TypeVar("Layer", bound=nn.Module)


def convert_layer(kind: type[Layer], source: nn.Module, dropout: KeyedDropout) -> Layer:
    """A layer as one of another class, with the same parameters."""
    new = kind.__new__(kind)
    new.__dict__ = source.__dict__
    new.keyed = dropout
    return new


class StepwiseRnn(nn.RNNBase):
    """nn.RNN, nn.GRU or nn.LSTM, one step after another."""

    keyed: KeyedDropout

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if not isinstance(input, Tensor):
            raise BadInput(
                f"a {self.mode} layer is given packed sequences, which cannot be stacked over "
                "clients: give it padded ones"
            )
        alone = input.dim() == 2
        x = input.unsqueeze(0) if alone else input if self.batch_first else input.transpose(0, 1)
        ways = 2 if self.bidirectional else 1
        given = (hx if self.mode == "LSTM" else (hx,)) if hx is not None else ()
        starts = [t.unsqueeze(1) if alone else t for t in given]
        ends = []
        for layer in range(self.num_layers):
            found = []
            for way in range(ways):
                start = [t[layer * ways + way] for t in starts]
                name = f"l{layer}{'_reverse' * way}"
                states, end = self._run(x.flip(1) if way else x, start, name)
                found.append(states.flip(1) if way else states)
                ends.append(end)
            x = torch.cat(found, -1)
            if layer + 1 < self.num_layers:
                x = self.keyed(x)
        last = tuple(torch.stack(column) for column in zip(*ends, strict=True))
        if alone:
            x, last = x[0], tuple(t[:, 0] for t in last)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x, last if self.mode == "LSTM" else last[0]

    def _run(self, x: Tensor, start: list[Tensor], name: str) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction: [B, steps, features] -> [B, steps, hidden], and its end."""
        weight, bias = getattr(self, f"weight_hh_{name}"), getattr(self, f"bias_hh_{name}", None)
        project = getattr(self, f"weight_hr_{name}", None)
        drive = F.linear(
            x, getattr(self, f"weight_ih_{name}"), getattr(self, f"bias_ih_{name}", None)
        )  # every step's input at once: one large product
        if not start:
            sizes = [self.proj_size or self.hidden_size, self.hidden_size]
            start = [drive.new_zeros(x.shape[0], size) for size in sizes]
        h, c = (start[0], start[-1])
        states = []
        for now in drive.unbind(1):
            h, c = self._step(now, F.linear(h, weight, bias), h, c)
            h = h if project is None else F.linear(h, project)
            states.append(h)
        return torch.stack(states, 1), [h, c] if self.mode == "LSTM" else [h]

    def _step(self, now: Tensor, back: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next states from what drives the gates: the input, and the state before."""
        if self.mode == "LSTM":
            enter, keep, new, show = (now + back).chunk(4, -1)
            c = keep.sigmoid() * c + enter.sigmoid() * new.tanh()
            return show.sigmoid() * c.tanh(), c
        if self.mode == "GRU":
            (reset, keep, new), (of_reset, of_keep, of_new) = now.chunk(3, -1), back.chunk(3, -1)
            fresh = (new + (reset + of_reset).sigmoid() * of_new).tanh()
            return fresh + (keep + of_keep).sigmoid() * (h - fresh), c
        return ((now + back).relu() if self.mode == "RNN_RELU" else (now + back).tanh()), c


class KeyedAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention whose dropout is a function of the step's key."""

    keyed: KeyedDropout

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint about attn_mask
    ) -> tuple[Tensor, Tensor | None]:
        alone = query.dim() == 2
        if alone:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        rows, steps = query.shape[:2]
        q, k, v = (self._heads(*pair) for pair in zip((query, key, value), range(3), strict=True))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            wide = (rows, self.num_heads, *attn_mask.shape[1:])
            scores = _apply_mask(
                scores, attn_mask.reshape(wide) if attn_mask.dim() == 3 else attn_mask
            )
        if key_padding_mask is not None:
            scores = _apply_mask(scores, key_padding_mask.reshape(rows, 1, 1, -1))
        weights = self.keyed(torch.softmax(scores, -1))
        out = self.out_proj((weights @ v).transpose(1, 2).reshape(rows, steps, self.embed_dim))
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if alone:
            return out[0], None if shown is None else shown[0]
        return out if self.batch_first else out.transpose(0, 1), shown

    def _heads(self, x: Tensor, which: int) -> Tensor:
        """The query, key or value of every head: [B, heads, steps, width]."""
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[which]
        weight = apart if self.in_proj_weight is None else self.in_proj_weight.chunk(3)[which]
        bias = None if self.in_proj_bias is None else self.in_proj_bias.chunk(3)[which]
        y = F.linear(x, weight, bias)
        return y.reshape(*y.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)


def _apply_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """A mask of truth values forbids, one of numbers is added."""
    forbidden = mask.dtype == torch.bool
    return scores.masked_fill(mask, -math.inf) if forbidden else scores + mask


def convert_attention(
    layer: nn.MultiheadAttention, path: str, dropout: KeyedDropout
) -> KeyedAttention:
    """The counterpart of an attention layer."""
    if layer.bias_k is not None or layer.add_zero_attn:
        raise BadInput(
            f"layer '{path}' is a MultiheadAttention with add_bias_kv or add_zero_attn, which "
            "coterie does not have: leave them out"
        )
    new = convert_layer(KeyedAttention, layer, dropout)
    new._qkv_same_embed_dim = False  # so that encoder layers call it, and no fused code instead
    return new
