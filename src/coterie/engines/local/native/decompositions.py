"""Operations of torch in terms of simpler ones, for which there is C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_gradients,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_gradients,
    aten.select_backward.default: _select_gradients,
    aten.slice_backward.default: _slice_gradients,
    aten.flip.default: _flip,
    aten.mv.default: _matrix_vector,
}
