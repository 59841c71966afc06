"""Layers that depend on more than their input: BatchNorm on the real rows only, Dropout from a key.

A user's module is copied and such layers are replaced, so that stacking clients and padding batches
change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm

from coterie.core.draws import KeyedDropout, PassContext
from coterie.core.errors import BadInput
from coterie.core.sequence_layers import StepwiseRnn, convert_attention, convert_layer


class WeightedNorm(torch.autograd.Function):
    """Channels centred and scaled by their means and variances over weighted rows.

    Its gradients are written by hand: autograd would go through the images more than twice as
    often.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, share: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """share: [rows], the weight of each number of a row in the means; 0 for padded rows."""
        mean = (_sum_positions(x) * share[:, None]).sum(0)
        apart = x - _broadcast_channels(mean, x)
        var = (_sum_positions(apart * apart) * share[:, None]).sum(0)
        scale = weight * (var + eps).rsqrt()
        return (
            torch.addcmul(_broadcast_channels(bias, x), apart, _broadcast_channels(scale, x)),
            apart,
            mean,
            var,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, _, share, ctx.eps = inputs
        _, apart, _, var = output
        ctx.save_for_backward(weight, share, apart, var)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, by_out: Tensor | None, by_apart: Tensor | None, *by_moments: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Gradients by the inputs, from those by the results; all but the first are None unless
        gradients of gradients are wanted.
        """
        weight, share, apart, var = ctx.saved_tensors
        by_mean, by_var = (torch.zeros_like(var) if s is None else s for s in by_moments)
        sharp = (var + ctx.eps).rsqrt()
        by_weight = by_bias = None
        if by_apart is not None:
            by_mean = by_mean - _sum_positions(by_apart).sum(0)
        if by_out is not None:
            by_bias, along = _sum_positions(by_out).sum(0), _sum_positions(by_out * apart).sum(0)
            by_weight = along * sharp
            by_mean = by_mean - weight * sharp * by_bias
            by_var = by_var - weight * sharp * sharp * sharp * along / 2
        rows = share[:, None]
        by_x = torch.addcmul(
            _broadcast_channels(rows * by_mean, apart),
            apart,
            _broadcast_channels(rows * by_var * 2, apart),
        )
        if by_out is not None:
            by_x = torch.addcmul(by_x, by_out, _broadcast_channels(weight * sharp, apart))
        if by_apart is not None:
            by_x = by_x + by_apart
        return by_x, by_weight, by_bias, None, None


def _sum_positions(x: Tensor) -> Tensor:
    """The sums of every row's channels."""
    return x.sum(tuple(range(2, x.dim()))) if x.dim() > 2 else x


def _broadcast_channels(channels: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels, or of rows and channels, beside images."""
    return channels.reshape(*(1,) * (2 - channels.dim()), *channels.shape, *(1,) * (x.dim() - 2))


class MaskedBatchNorm(nn.Module):
    """BatchNorm over the real rows of a padded batch, its statistics carried as buffers of the
    model.
    """

    def __init__(self, source: nn.modules.batchnorm._BatchNorm, context: PassContext):
        super().__init__()
        self.eps, self.momentum, self.tracks = (
            source.eps,
            source.momentum,
            source.track_running_stats,
        )
        self.weight, self.bias = source.weight, source.bias
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(source, name))
        self._context = [context]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.tracks:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # sums of rows need all their digits
        mask = self._context[0].mask
        mask = torch.ones(x.shape[0], dtype=x.dtype) if mask is None else mask.to(x.dtype)
        numbers = x[0, 0].numel() if x.dim() > 2 else 1  # of a channel in one row
        count = (mask.sum() * numbers).clamp(min=1)
        weight, bias = self.weight, self.bias
        if weight is None:
            weight, bias = torch.ones(x.shape[1], dtype=x.dtype), torch.zeros((), dtype=x.dtype)
        out: Tensor
        normed = WeightedNorm.apply(x, weight, bias, mask / count, self.eps)  # type: ignore[no-untyped-call]
        out, _, mean, var = normed
        if self.training and self.tracks:
            self._track(mean.detach(), (var * count / (count - 1).clamp(min=1)).detach())
        return out

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """New running statistics; `functional_call` hands the new buffers back, nothing is changed
        in place.
        """
        self.num_batches_tracked = self.num_batches_tracked + 1
        rate = (
            1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        )
        self.running_mean = self.running_mean + rate * (mean - self.running_mean)
        self.running_var = self.running_var + rate * (var - self.running_var)


class MaskedInstanceNorm(nn.Module):
    """InstanceNorm with running statistics: means over the real rows, carried as buffers."""

    def __init__(self, source: nn.modules.instancenorm._InstanceNorm, context: PassContext):
        super().__init__()
        self.eps, self.momentum = source.eps, source.momentum or 0.0
        self.weight, self.bias = source.weight, source.bias
        self.running_mean: Tensor
        self.running_var: Tensor
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(source, name))
        self._context = [context]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # sums of rows need all their digits
        axes = tuple(range(2, x.dim()))
        mean = x.mean(axes, keepdim=True)
        centred = x - mean
        var = centred.square().mean(axes, keepdim=True)
        size = x[0, 0].numel()
        self._track(mean.flatten(1).detach(), (var * size / max(size - 1, 1)).flatten(1).detach())
        out = centred * (var + self.eps).rsqrt()
        wide = (1, -1, *(1,) * (x.dim() - 2))
        return (
            out
            if self.weight is None
            else out * self.weight.reshape(wide) + self.bias.reshape(wide)
        )

    def _track(self, means: Tensor, variances: Tensor) -> None:
        mask = self._context[0].mask
        mask = torch.ones(means.shape[0]) if mask is None else mask
        share = (mask / mask.sum().clamp(min=1)).to(means.dtype)
        self.running_mean = self.running_mean + self.momentum * (share @ means - self.running_mean)
        self.running_var = self.running_var + self.momentum * (share @ variances - self.running_var)


class PureSpectralNorm(nn.Module):
    """torch's spectral_norm, whose power iteration hands new vectors back instead of writing over
    those it was given.
    """

    def __init__(self, source: _SpectralNorm):
        super().__init__()
        self.eps, self.dim = source.eps, source.dim
        self.iterations = getattr(source, "n_power_iterations", 0)
        for name, buffer in source.named_buffers(recurse=False):
            self.register_buffer(name, buffer)
        self._u: Tensor
        self._v: Tensor

    def forward(self, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        rows = weight.movedim(self.dim, 0).flatten(1)
        if self.training:
            fixed = rows.detach()
            for _ in range(self.iterations):
                self._u = F.normalize(fixed @ self._v, dim=0, eps=self.eps)
                self._v = F.normalize(fixed.T @ self._u, dim=0, eps=self.eps)
        return weight / (self._u * (rows @ self._v)).sum()


class PureWeightNorm(nn.Module):
    """torch's weight_norm from plain operations, as its own has no rule under vmap."""

    def __init__(self, source: _WeightNorm):
        super().__init__()
        self.dim = source.dim

    def forward(self, size: Tensor, direction: Tensor) -> Tensor:
        kept = self.dim
        axes = tuple(d for d in range(direction.dim()) if kept == -1 or d != kept)
        return direction * (size / direction.square().sum(axes, keepdim=kept != -1).sqrt())


PURE = (
    MaskedBatchNorm,
    MaskedInstanceNorm,
    PureSpectralNorm,
)  # they never write over their buffers
REFUSED = (
    nn.SyncBatchNorm,
    nn.modules.lazy.LazyModuleMixin,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def replace_layers(module: nn.Module, context: PassContext) -> nn.Module:
    """Replace, in a module of our own, the layers that need the context; refuse those nothing can
    be done for.
    """
    places = iter(range(1_000_000))
    made: dict[int, nn.Module] = {}  # a layer that is used in several places stays one

    def visit(parent: nn.Module, path: str) -> None:
        for name, child in _child_layers(parent):
            here = f"{path}{name}"
            new = made.get(id(child)) or _build_replacement(child, here, context, places)
            if new is not None:
                made[id(child)] = new
                setattr(parent, name, new)
            else:
                visit(child, here + ".")

    root = _build_replacement(module, "the model itself", context, places)
    if root is not None:
        return root
    visit(module, "")
    return module


def _child_layers(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, layer) of every place right below a module, of a layer with two names both."""
    below = parent.named_modules(remove_duplicate=False)
    return [(name, layer) for name, layer in below if name and "." not in name]


def _build_replacement(
    layer: nn.Module, path: str, context: PassContext, places: Iterator[int]
) -> nn.Module | None:
    _check_layer(layer, path)
    dropout = partial(KeyedDropout, context=context)
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return MaskedBatchNorm(layer, context)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        return MaskedInstanceNorm(layer, context)
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        channels = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        return dropout(layer.p, next(places), whole_channels=channels)
    if isinstance(layer, nn.RNNBase):
        return convert_layer(StepwiseRnn, layer, dropout(layer.dropout, next(places)))
    if isinstance(layer, nn.MultiheadAttention):
        return convert_attention(layer, path, dropout(layer.dropout, next(places)))
    if isinstance(layer, _WeightNorm):
        return PureWeightNorm(layer)
    return PureSpectralNorm(layer) if isinstance(layer, _SpectralNorm) else None


def _check_layer(layer: nn.Module, path: str) -> None:
    """Refuse a layer that nothing can be done for."""
    what = f"layer '{path}' is a {type(layer).__name__}"
    if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
        raise BadInput(f"{what}, whose size is not known: give it its number of inputs")
    if isinstance(layer, REFUSED):
        raise BadInput(
            f"{what}, which cannot be stacked over clients: use nn.GroupNorm, nn.BatchNorm or "
            "nn.Dropout"
        )
    vectors = {name.removesuffix("_u") for name, _ in layer.named_buffers(recurse=False)}
    if any(f"{name}_orig" in dict(layer.named_parameters(recurse=False)) for name in vectors):
        raise BadInput(
            f"{what} under nn.utils.spectral_norm, which writes over its vectors: use "
            "nn.utils.parametrizations.spectral_norm"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise BadInput(f"{what} with max_norm, which writes over its weights: leave it out")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
        raise BadInput(f"{what} with sparse=True, whose gradients cannot be stacked: leave it out")
