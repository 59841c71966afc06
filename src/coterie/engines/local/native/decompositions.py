"""Operations of torch in terms of simpler ones, for which there is C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from coterie.engines.local.native.activations import ACTIVATIONS
from coterie.engines.local.tracing import Untraceable

aten = torch.ops.aten


def _batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if training:
        raise Untraceable("there is no C for a batch norm that does not know its padded rows")
    side = (-1, *(1,) * (x.dim() - 2))
    scale = (variance + eps).rsqrt()
    out = (x - mean.reshape(side)) * (scale * weight).reshape(side) + bias.reshape(side)
    return out, mean, scale


def _batch_norm_gradients(
    gradients: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    variance: Tensor,
    _mean: Any,
    _scale: Any,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    if training:
        raise Untraceable("there is no C for a batch norm that does not know its padded rows")
    side, rows = (-1, *(1,) * (x.dim() - 2)), [0, *range(2, x.dim())]
    scale = (variance + eps).rsqrt()
    found = (
        gradients * (scale * weight).reshape(side),
        (gradients * (x - mean.reshape(side))).sum(rows) * scale,
        gradients.sum(rows),
    )
    return tuple(one if want else None for one, want in zip(found, wanted, strict=True))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    mean = x.mean(dims, keepdim=True)
    apart = x - mean
    scale = (apart.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = apart * scale
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, scale


def _layer_norm_gradients(
    gradients: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    last = list(range(x.dim() - len(shape), x.dim()))
    rows = list(range(x.dim() - len(shape)))
    normed = (x - mean) * scale
    inner = gradients if weight is None else gradients * weight
    common = inner.mean(last, keepdim=True)
    along = (inner * normed).mean(last, keepdim=True)
    found = (
        (inner - common - normed * along) * scale,
        (gradients * normed).sum(rows) if rows else gradients * normed,
        gradients.sum(rows) if rows else gradients,
    )
    return tuple(one if want else None for one, want in zip(found, wanted, strict=True))


def _pad_slice(gradients: Tensor, sizes: list[int], dim: int, first: int, step: int) -> Tensor:
    """Gradients at every `step`-th place of a dimension, zeros elsewhere."""
    dim %= len(sizes)
    shape = list(sizes)
    if step != 1:
        raise Untraceable("there is no C for gradients of a slice with steps")

    def zeros(number: int) -> Tensor:
        shape[dim] = number
        return gradients.new_zeros(shape)

    after = sizes[dim] - first - gradients.shape[dim]
    parts = [zeros(first)] * (first > 0) + [gradients] + [zeros(after)] * (after > 0)
    return torch.cat(parts, dim) if len(parts) > 1 else gradients.clone()


def _pad(x: Tensor, borders: list[int], value: float = 0.0) -> Tensor:
    """A tensor within a border of one number; a border below zero cuts."""
    for k in range(0, len(borders), 2):
        dim = x.dim() - 1 - k // 2
        cut = [max(-border, 0) for border in borders[k : k + 2]]
        x = x.narrow(dim, cut[0], x.shape[dim] - sum(cut))
        before, after = (
            x.new_full([*x.shape[:dim], max(border, 0), *x.shape[dim + 1 :]], value)
            for border in borders[k : k + 2]
        )
        x = torch.cat([part for part in (before, x, after) if part.numel()], dim)
    return x


def _select_gradients(gradients: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    dim %= len(sizes)
    return _pad_slice(gradients.unsqueeze(dim), sizes, dim, index % sizes[dim], 1)


def _slice_gradients(
    gradients: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    whole = sizes[dim]
    return _pad_slice(
        gradients, sizes, dim, min(start % whole if start < 0 else start, whole), step
    )


def _flip(x: Tensor, dims: list[int]) -> Tensor:
    for dim in dims:
        n = x.shape[dim]
        x = x.index_select(dim, torch.arange(n - 1, -1, -1))
    return x


def _matrix_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(1)).squeeze(1)


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rows: int,
    channels: int,
    places: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts = x.reshape(rows, groups, -1)
    mean = parts.mean(2, keepdim=True)
    apart = parts - mean
    scale = (apart.square().mean(2, keepdim=True) + eps).rsqrt()
    out = (apart * scale).reshape(rows, channels, places)
    out = out if weight is None else out * weight.reshape(1, channels, 1)
    out = out if bias is None else out + bias.reshape(1, channels, 1)
    return out.reshape(x.shape), mean.reshape(rows, groups), scale.reshape(rows, groups)


def _group_norm_gradients(
    gradients: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    rows: int,
    channels: int,
    places: int,
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, ...]:
    side = rows, groups, 1
    normed = (x.reshape(rows, groups, -1) - mean.reshape(side)) * scale.reshape(side)
    given = gradients.reshape(rows, channels, places)
    inner = given if weight is None else given * weight.reshape(1, channels, 1)
    inner = inner.reshape(rows, groups, -1)
    along = (inner * normed).mean(2, keepdim=True)
    own = (inner - inner.mean(2, keepdim=True) - normed * along) * scale.reshape(side)
    found = (
        own.reshape(x.shape),
        (given * normed.reshape(rows, channels, places)).sum([0, 2]),
        given.sum([0, 2]),
    )
    return tuple(one if want else None for one, want in zip(found, wanted, strict=True))


def _weigh_places(
    query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, float]:
    """The shares of attention, and what the products were multiplied with."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    said = (query @ key.transpose(-2, -1)) * factor
    if is_causal:
        sides = query.shape[-2], key.shape[-2]
        said = said + torch.full(sides, -torch.inf, dtype=query.dtype).triu(1)
    if mask is not None:
        hidden = torch.full((), -torch.inf, dtype=query.dtype)
        none = torch.zeros((), dtype=query.dtype)
        said = said + (torch.where(mask, none, hidden) if mask.dtype == torch.bool else mask)
    return said.softmax(-1), factor


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    if dropout:
        raise Untraceable("it draws numbers of its own")
    shares, _ = _weigh_places(query, key, is_causal, attn_mask, scale)
    return shares @ value, query.new_zeros(query.shape[:-1])


def _attention_gradients(
    gradients: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _out: Tensor,
    _sums: Tensor,
    _dropout: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    shares, factor = _weigh_places(query, key, is_causal, attn_mask, scale)
    theirs = gradients @ value.transpose(-2, -1)
    said = shares * (theirs - (theirs * shares).sum(-1, keepdim=True)) * factor
    return said @ key, said.transpose(-2, -1) @ query, shares.transpose(-2, -1) @ gradients


def _bags(
    weight: Tensor,
    words: Tensor,
    offsets: Tensor,
    _by_count: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    weights: Tensor | None = None,
    _last: bool = False,
    padding: int = -1,
) -> tuple[Tensor, ...]:
    """Sums or means of the vectors of bags that are all of one size, as those of a batch are."""
    if mode > 1 or weights is not None or padding >= 0 or words.numel() % offsets.numel():
        raise Untraceable("there is no C for embedding bags of this form")
    each = aten.embedding(weight, words).reshape(offsets.numel(), -1, weight.shape[1])
    found = each.mean(1) if mode else each.sum(1)
    none = torch.zeros_like(words)  # torch makes what it lacks of this by writing over it
    return found, none, torch.zeros_like(offsets), torch.zeros_like(offsets)


def _bag_gradients(
    gradients: Tensor,
    words: Tensor,
    _offsets: Tensor,
    _bag: Tensor,
    _sizes: Tensor,
    _largest: Tensor,
    number: int,
    by_count: bool,
    mode: int,
    _sparse: bool,
    _weights: Tensor | None,
    padding: int = -1,
) -> Tensor:
    bags, size = gradients.shape
    each = words.numel() // bags
    given = gradients / each if mode else gradients
    spread = given.unsqueeze(1).expand(bags, each, size).reshape(-1, size)
    found: Tensor = aten.embedding_dense_backward(spread, words, number, padding, by_count)
    return found


def _slice_scatter(
    x: Tensor,
    part: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A tensor with another one in the place of a slice."""
    n, first = x.shape[dim], start or 0
    first = max(first + n, 0) if first < 0 else min(first, n)
    if step != 1:
        raise Untraceable("there is no C for a slice with steps that is written over")
    after = first + part.shape[dim]
    pieces = [x.narrow(dim, 0, first), part.expand_as(x.narrow(dim, first, part.shape[dim]))]
    return torch.cat([p for p in (*pieces, x.narrow(dim, after, n - after)) if p.numel()], dim)


def _select_scatter(x: Tensor, part: Tensor, dim: int, index: int) -> Tensor:
    return _slice_scatter(x, part.unsqueeze(dim), dim, index % x.shape[dim])


def _mean_pool_of(size: list[int], shape: torch.Size) -> list[int]:
    """The windows of a pool that gives images of a size, where they are all alike."""
    if any(n % k for n, k in zip(shape[2:], size, strict=True)):
        raise Untraceable("there is no C for an adaptive pool whose windows are not all alike")
    return [n // k for n, k in zip(shape[2:], size, strict=True)]


def _adaptive_mean(x: Tensor, size: list[int]) -> Tensor:
    kernel = _mean_pool_of(size, x.shape)
    found: Tensor = aten.avg_pool2d(x, kernel, kernel)
    return found


def _adaptive_mean_gradients(gradients: Tensor, x: Tensor) -> Tensor:
    kernel = _mean_pool_of(list(gradients.shape[2:]), x.shape)
    found: Tensor = aten.avg_pool2d_backward(
        gradients, x, kernel, kernel, [0, 0], False, True, None
    )
    return found


def _fill_masked(x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    filler = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype)
    return torch.where(mask, filler, x)


# torch says these by others before they are traced, but not within the functions above
COMPOSED = [
    aten.matmul.default,
    aten.reshape.default,
    aten.softmax.int,
    aten.narrow.default,
    aten.expand_as.default,
]


def _private(name: str) -> Any:
    """An operation of torch whose name begins with an underscore."""
    return getattr(aten, name).default


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **ACTIVATIONS,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_gradients,
    _private("_scaled_dot_product_flash_attention_for_cpu"): _attention,
    _private("_scaled_dot_product_flash_attention_for_cpu_backward"): _attention_gradients,
    _private("_embedding_bag"): _bags,
    _private("_embedding_bag_forward_only"): _bags,
    _private("_embedding_bag_backward"): _bag_gradients,
    _private("_adaptive_avg_pool2d"): _adaptive_mean,
    _private("_adaptive_avg_pool2d_backward"): _adaptive_mean_gradients,
    **{op: op.decompose for op in COMPOSED},
    aten.masked_fill.Scalar: _fill_masked,
    aten.masked_fill.Tensor: _fill_masked,
    aten.copy.default: lambda x, source, _=False: source.to(x.dtype).expand_as(x).clone(),
    aten.new_empty_strided.default: lambda x, size, _, **form: x.new_zeros(size),
    aten.fill.Scalar: torch.full_like,
    aten.fill.Tensor: lambda x, value: value.expand_as(x).clone(),
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_gradients,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_gradients,
    aten.select_backward.default: _select_gradients,
    aten.slice_backward.default: _slice_gradients,
    aten.flip.default: _flip,
    aten.constant_pad_nd.default: _pad,
    aten.mv.default: _matrix_vector,
}
