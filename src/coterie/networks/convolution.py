"""Networks of a few convolutions and dense layers, for images."""

import math
from collections.abc import Callable

from torch import nn

from coterie.networks.blocks import Shape, Width, chain, check_image_shape, scale_size, with_relu


def cifarnet(input_shape: Shape, classes: int) -> nn.Module:
    """The CNN of PyTorch's tutorial (PersFL, Self-FL)."""
    return lenet("cifarnet", input_shape, classes, nn.MaxPool2d)


def cnncifar(input_shape: Shape, classes: int) -> nn.Module:
    """CifarNet with 100 units in its second dense layer (pFedMe, PFML)."""
    return lenet("cnncifar", input_shape, classes, nn.MaxPool2d, second=100)


def kt_lenet(input_shape: Shape, classes: int) -> nn.Module:
    """KT-pFL's LeNet: the layers of CifarNet, at 28x28."""
    return lenet("kt-lenet", input_shape, classes, nn.MaxPool2d)


def lenet5(input_shape: Shape, classes: int) -> nn.Module:
    """UCFL's LeNet-5: average pools; weights start as in the authors' network, He-uniform in
    convolutions, Glorot-uniform in dense layers, biases 0. At PyTorch's smaller start gradients
    hardly tell rotated images apart, and UCFL compares clients by them.
    """
    net = lenet("lenet5", input_shape, classes, nn.AvgPool2d)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")  # within +-sqrt(6 / fan_in)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)  # within +-sqrt(6 / (fan_in + fan_out))
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return net


def mcmahan(input_shape: Shape, classes: int, width: Width = 1.0, padded: bool = True) -> nn.Module:
    """The CNN of McMahan et al. (KT-pFL's homogeneous runs, PFLlib's without padding).

    width: factor of every layer's width.
    padded: convolutions keep an image's size; no: each takes two pixels off every edge.
    """
    channels, *sides = check_image_shape("mcmahan", input_shape, least=4 if padded else 16)
    a, b, dense = (scale_size(size, width) for size in (32, 64, 512))
    pad = 2 if padded else 0
    left = [side // 4 if padded else ((side - 4) // 2 - 4) // 2 for side in sides]
    return chain(
        conv1=with_relu(nn.Conv2d(channels, a, 5, padding=pad), nn.MaxPool2d(2)),
        conv2=with_relu(nn.Conv2d(a, b, 5, padding=pad), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        dense1=with_relu(nn.Linear(b * math.prod(left), dense)),
        head=nn.Linear(dense, classes),
    )


def smallcnn(input_shape: Shape, classes: int) -> nn.Module:
    """A small CNN that also takes 8x8 digits."""
    channels, *sides = check_image_shape("smallcnn", input_shape, least=4)
    return chain(
        conv1=with_relu(nn.Conv2d(channels, 16, 3, padding=1), nn.MaxPool2d(2)),
        conv2=with_relu(nn.Conv2d(16, 32, 3, padding=1), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        head=nn.Linear(32 * math.prod(side // 4 for side in sides), classes),
    )


def kt_alexnet(input_shape: Shape, classes: int, width: Width = 1.0) -> nn.Module:
    """KT-pFL's AlexNet, with dropout before both wide dense layers.

    width: factor of every layer's width.
    """
    channels, *sides = check_image_shape("kt-alexnet", input_shape, least=15)
    a, b, c, d, dense = (scale_size(size, width) for size in (64, 192, 384, 256, 4096))
    return chain(
        conv1=with_relu(nn.Conv2d(channels, a, 3, stride=2, padding=1), nn.MaxPool2d(2)),
        conv2=with_relu(nn.Conv2d(a, b, 3, padding=1), nn.MaxPool2d(2)),
        conv3=with_relu(nn.Conv2d(b, c, 3, padding=1)),
        conv4=with_relu(nn.Conv2d(c, d, 3, padding=1)),
        conv5=with_relu(nn.Conv2d(d, d, 3, padding=1), nn.MaxPool2d(2)),
        flat=nn.Flatten(),
        drop1=nn.Dropout(0.5),
        dense1=with_relu(nn.Linear(d * math.prod((side + 1) // 2 // 8 for side in sides), dense)),
        drop2=nn.Dropout(0.5),
        dense2=with_relu(nn.Linear(dense, dense)),
        head=nn.Linear(dense, classes),
    )


def lenet(
    name: str, input_shape: Shape, classes: int, pool: Callable[[int], nn.Module], second: int = 84
) -> nn.Sequential:
    """Two 5x5 convolutions, each pooled, and three dense layers: what four networks share."""
    channels, *sides = check_image_shape(name, input_shape, least=16)
    return chain(
        conv1=with_relu(nn.Conv2d(channels, 6, 5), pool(2)),
        conv2=with_relu(nn.Conv2d(6, 16, 5), pool(2)),
        flat=nn.Flatten(),
        dense1=with_relu(
            nn.Linear(16 * math.prod(((side - 4) // 2 - 4) // 2 for side in sides), 120)
        ),
        dense2=with_relu(nn.Linear(120, second)),
        head=nn.Linear(second, classes),
    )
