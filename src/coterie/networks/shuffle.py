"""ShuffleNetV2 for small images, and its units."""

import torch
from torch import Tensor, nn

from coterie.networks.blocks import Shape, Width, chain, check_image_shape, scale_size


def kt_shufflenet(input_shape: Shape, classes: int, width: Width = 1.0) -> nn.Module:
    """KT-pFL's ShuffleNetV2 x1: 3x3 stem without ReLU, convolutions with biases.

    width: factor of every layer's width.
    """
    channels, *_ = check_image_shape("kt-shufflenet", input_shape, least=1)
    size, last = scale_size(24, width), scale_size(1024, width)
    layers: dict[str, nn.Module] = {
        "stem": chain(conv=nn.Conv2d(channels, size, 3, padding=1), bn=nn.BatchNorm2d(size))
    }
    for stage, (full, units) in enumerate(((116, 4), (232, 8), (464, 4)), start=1):
        before, size = size, 2 * scale_size(full // 2, width)  # even: a unit halves its channels
        layers[f"stage{stage}"] = nn.Sequential(
            DownsampleUnit(before, size), *(ShuffleUnit(size) for _ in range(units - 1))
        )
    layers["last"] = pointwise(size, last)
    return chain(
        **layers, pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), head=nn.Linear(last, classes)
    )


class DownsampleUnit(nn.Module):
    """The first unit of a stage: both branches see every channel and halve the image."""

    def __init__(self, before: int, size: int) -> None:
        super().__init__()
        self.left = nn.Sequential(*depthwise(before, 2), *pointwise(before, size // 2))
        self.right = nn.Sequential(
            *pointwise(before, before), *depthwise(before, 2), *pointwise(before, size // 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return interleave(self.left(x), self.right(x))


class ShuffleUnit(nn.Module):
    """A later unit of a stage: half of the channels pass unchanged."""

    def __init__(self, size: int) -> None:
        super().__init__()
        half = size // 2
        self.right = nn.Sequential(
            *pointwise(half, half), *depthwise(half, 1), *pointwise(half, half)
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return interleave(left, self.right(right))


def pointwise(before: int, size: int) -> nn.Sequential:
    """A 1x1 convolution with BatchNorm and ReLU."""
    return nn.Sequential(nn.Conv2d(before, size, 1), nn.BatchNorm2d(size), nn.ReLU())


def depthwise(size: int, stride: int) -> nn.Sequential:
    """A 3x3 convolution of every channel by itself, with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(size, size, 3, stride, padding=1, groups=size), nn.BatchNorm2d(size)
    )


def interleave(left: Tensor, right: Tensor) -> Tensor:
    """The channels of both in turn: l0 r0 l1 r1 ..."""
    return torch.stack((left, right), 2).flatten(1, 2)
