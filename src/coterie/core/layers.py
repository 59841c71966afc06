"""Layers that depend on more than their input: BatchNorm on the real rows only, Dropout from a key.

A user's module is copied and such layers are replaced, so that stacking clients and padding batches
change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.errors import BadInput


class Context:
    """What a training pass knows beside its input: which rows are real, and the key of its random
    draws.
    """

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.key: Tensor | None = None

    @contextmanager
    def over(self, mask: Tensor, key: Tensor) -> Iterator[None]:
        """Hold for one forward pass."""
        self.mask, self.key = mask, key
        try:
            yield
        finally:
            self.mask = self.key = None


def uniform(shape: tuple[int, ...], key: Tensor) -> Tensor:
    """Numbers in [0, 1) that depend on the key and their place only, alike under vmap and alone."""
    count = 1
    for length in shape:
        count *= length
    h = (
        torch.arange(count, dtype=torch.int64) + key * 0x2545F491
    )  # products of the index alone overflow once compiled
    for shift, factor in ((32, 0x2C1B3C6D), (29, 0x297A2D39), (31, 0x1B56C4E9)):
        h = (h ^ ((h >> shift) & ((1 << (64 - shift)) - 1))) * factor
    bits = (h >> 20) & 0xFFFFFF
    return (bits.to(torch.get_default_dtype()) / (1 << 24)).reshape(shape)


class KeyedDropout(nn.Module):
    """Dropout whose draw is a function of the step's key."""

    def __init__(self, p: float, place: int, context: Context, whole_channels: bool = False):
        super().__init__()
        self.p, self.place, self.whole_channels = p, place, whole_channels
        self._context = [context]  # in a list, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        key = self._context[0].key
        assert key is not None, "dropout outside a training pass"
        shape = (*x.shape[:2], *(1,) * (x.dim() - 2)) if self.whole_channels else tuple(x.shape)
        keep = uniform(shape, key * 1_000_003 + self.place) >= self.p
        return x * keep / (1 - self.p)


class RowBatchNorm(nn.Module):
    """BatchNorm over the real rows of a padded batch, its statistics carried as buffers of the
    model.
    """

    def __init__(self, source: nn.modules.batchnorm._BatchNorm, context: Context):
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
        mask = self._context[0].mask
        mask = torch.ones(x.shape[0], dtype=x.dtype) if mask is None else mask.to(x.dtype)
        real = mask.reshape(-1, *(1,) * (x.dim() - 1))
        axes = (0, *range(2, x.dim()))
        count = (mask.sum() * (x[0, 0].numel() if x.dim() > 2 else 1)).clamp(min=1)
        mean = (x * real).sum(axes) / count
        wide = (1, -1, *(1,) * (x.dim() - 2))
        centred = x - mean.reshape(wide)
        var = (centred.square() * real).sum(axes) / count
        if self.training and self.tracks:
            self._track(mean.detach(), (var * count / (count - 1).clamp(min=1)).detach())
        out = centred * (var.reshape(wide) + self.eps).rsqrt()
        return (
            out
            if self.weight is None
            else out * self.weight.reshape(wide) + self.bias.reshape(wide)
        )

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


REFUSED = (
    nn.SyncBatchNorm,
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.modules.batchnorm._LazyNormBase,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def prepare(module: nn.Module, context: Context) -> nn.Module:
    """Replace, in a module of our own, the layers that need the context; refuse those nothing can
    be done for.
    """
    places = iter(range(1_000_000))

    def visit(parent: nn.Module, path: str) -> None:
        for name, child in parent.named_children():
            here = f"{path}{name}"
            new = _replacement(child, here, context, places)
            if new is not None:
                setattr(parent, name, new)
            else:
                visit(child, here + ".")

    root = _replacement(module, "the model itself", context, places)
    if root is not None:
        return root
    visit(module, "")
    return module


def _replacement(
    layer: nn.Module, path: str, context: Context, places: Iterator[int]
) -> nn.Module | None:
    if isinstance(layer, REFUSED) or (
        isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats
    ):
        way = (
            "coterie.networks.recurrent has an LSTM written from its cell"
            if isinstance(layer, nn.RNNBase)
            else "use nn.GroupNorm, nn.BatchNorm or nn.Dropout"
        )
        raise BadInput(
            f"layer '{path}' is a {type(layer).__name__}, which cannot be stacked over clients: "
            f"{way}"
        )
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return RowBatchNorm(layer, context)
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        channels = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        return KeyedDropout(layer.p, next(places), context, channels)
    return None
