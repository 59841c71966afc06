"""Activations of torch and their gradients in terms of simpler operations, for which there is C."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
TANH_FACTOR, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715  # of the GELU that is a tanh
SIXTH = 0.16666667163372040  # torch has it in single precision, whatever it computes in
EDGE = 20.0  # beyond it tanh(softplus(x)) is 1 in double precision too


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return 0.5 * x * (1 + _inner(x).tanh())
    return 0.5 * x * (1 + (x * math.sqrt(0.5)).erf())


def _inner(x: Tensor) -> Tensor:
    return TANH_FACTOR * (x + TANH_CUBE * x * x * x)


def _gelu_gradients(gradients: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        bent = _inner(x).tanh()
        slope = TANH_FACTOR * (1 + 3 * TANH_CUBE * x * x)
        return gradients * (0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * slope)
    below = 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    density = (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi))
    return gradients * (below + x * density)


def _silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def _silu_gradients(gradients: Tensor, x: Tensor) -> Tensor:
    share = x.sigmoid()
    return gradients * (share * (1 + x * (1 - share)))


def _mish_share(x: Tensor) -> Tensor:
    """tanh(softplus(x)) as a fraction of powers."""
    power = x.clamp(max=EDGE).exp()
    double = power * (power + 2)
    return double / (double + 2)


def _mish(x: Tensor) -> Tensor:
    return x * _mish_share(x)


def _mish_gradients(gradients: Tensor, x: Tensor) -> Tensor:
    share = _mish_share(x)
    return gradients * (share + x * x.sigmoid() * (1 - share * share))


def _hardswish(x: Tensor) -> Tensor:
    return x * (x + 3).clamp(0, 6) / 6


def _hardswish_gradients(gradients: Tensor, x: Tensor) -> Tensor:
    zero = torch.zeros_like(x)
    within = torch.where(x < 3, gradients * (x / 3 + 0.5), gradients)
    return torch.where(x <= -3, zero, within)


def _hardsigmoid(x: Tensor) -> Tensor:
    return (x + 3).clamp(0, 6) / 6


def _hardsigmoid_gradients(gradients: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), gradients * SIXTH, torch.zeros_like(x))


def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    return x.clamp(low, high)


def _hardtanh_gradients(gradients: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), gradients, torch.zeros_like(x))


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return torch.where(x > 0, x * scale, (x * input_scale).expm1() * (alpha * scale))


def _elu_gradients(
    gradients: Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Tensor,  # or what was made of it
) -> Tensor:
    power = x + alpha * scale if is_result else (x * input_scale).exp() * (alpha * scale)
    return torch.where(x <= 0, gradients * input_scale * power, gradients * scale)


def _leaky(x: Tensor, slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * slope)


def _leaky_gradients(gradients: Tensor, x: Tensor, slope: float, _: bool) -> Tensor:
    return torch.where(x > 0, gradients, gradients * slope)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x > 0, x, slope * x)


def _prelu_gradients(gradients: Tensor, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    zero = torch.zeros_like(x)
    own = torch.where(x > 0, gradients, slope * gradients)
    return own, torch.where(x > 0, zero, x * gradients)


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return torch.where(x * beta > threshold, x, (x * beta).exp().log1p() / beta)


def _softplus_gradients(gradients: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    return torch.where(x * beta > threshold, gradients, gradients * (x * beta).sigmoid())


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clamp(max=0) - (-x.abs()).exp().log1p(), x.new_zeros(0)


def _log_sigmoid_gradients(gradients: Tensor, x: Tensor, _: Tensor) -> Tensor:
    return gradients * (-x).sigmoid()


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    one, two = x.chunk(2, dim)
    return one * two.sigmoid()


def _glu_gradients(gradients: Tensor, x: Tensor, dim: int) -> Tensor:
    one, two = x.chunk(2, dim)
    share = two.sigmoid()
    return torch.cat([gradients * share, gradients * one * share * (1 - share)], dim)


ACTIVATIONS: dict[Any, Callable[..., Any]] = {
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_gradients,
    aten.silu.default: _silu,
    aten.silu_backward.default: _silu_gradients,
    aten.mish.default: _mish,
    aten.mish_backward.default: _mish_gradients,
    aten.hardswish.default: _hardswish,
    aten.hardswish_backward.default: _hardswish_gradients,
    aten.hardsigmoid.default: _hardsigmoid,
    aten.hardsigmoid_backward.default: _hardsigmoid_gradients,
    aten.hardtanh.default: _hardtanh,
    aten.hardtanh_backward.default: _hardtanh_gradients,
    aten.elu.default: _elu,
    aten.elu_backward.default: _elu_gradients,
    aten.leaky_relu.default: _leaky,
    aten.leaky_relu_backward.default: _leaky_gradients,
    getattr(aten, "_prelu_kernel").default: _prelu,  # noqa: B009 (a name of torch, not of ours)
    getattr(aten, "_prelu_kernel_backward").default: _prelu_gradients,  # noqa: B009
    aten.softplus.default: _softplus,
    aten.softplus_backward.default: _softplus_gradients,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.log_sigmoid_backward.default: _log_sigmoid_gradients,
    aten.glu.default: _glu,
    aten.glu_backward.default: _glu_gradients,
}
