"""Networks of dense layers, and the single vector of the two-level Gaussian."""

import math

import torch
from torch import Tensor, nn

from coterie.networks.blocks import Shape, Units, chain, with_relu


def mlr(input_shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression: one dense layer."""
    return chain(flat=nn.Flatten(), head=nn.Linear(math.prod(input_shape), classes))


def logistic(input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression: one dense layer, with one output for two classes."""
    return mlr(input_shape, 1 if classes == 2 else classes)


def dnn(input_shape: Shape, classes: int, hidden: Units = 100, norm: bool = False) -> nn.Module:
    """One hidden dense layer.

    hidden: units of the hidden layer.
    norm: BatchNorm before the ReLU.
    """
    dense = nn.Linear(math.prod(input_shape), hidden)
    return chain(
        flat=nn.Flatten(),
        dense1=with_relu(nn.Sequential(dense, nn.BatchNorm1d(hidden)))
        if norm
        else with_relu(dense),
        head=nn.Linear(hidden, classes),
    )


def mean(input_shape: Shape, classes: int) -> nn.Module:
    """The model of the two-level Gaussian: one vector theta, which is the output for every row."""
    return Mean(math.prod(input_shape))


class Mean(nn.Module):
    """The vector theta, which starts at 0."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(x.shape[0], -1)
