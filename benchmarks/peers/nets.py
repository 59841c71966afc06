"""The networks of the comparisons as plain torch modules."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def build(name: str, shape: tuple[int, ...]) -> nn.Module:
    """The named network for ten classes."""
    if name == "cnn":
        return cnn(shape)
    size = math.prod(shape)
    if name == "mlr":
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 10))
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn(shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions, dropout and two dense layers: as pfl-research trains on CIFAR-10."""
    channels, side, _ = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((side - 4) // 2) ** 2, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


def started(name: str, shape: tuple[int, ...], init: list[np.ndarray]) -> nn.Module:
    """The network with these parameters."""
    net = build(name, shape)
    with torch.no_grad():
        for p, a in zip(net.parameters(), init, strict=True):
            p.copy_(torch.from_numpy(a))
    return net


@torch.no_grad()
def worth(net: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and loss on rows."""
    net.eval()
    right = loss = 0.0
    for k in range(0, len(y), 1000):
        out, labels = net(torch.from_numpy(x[k : k + 1000])), torch.from_numpy(y[k : k + 1000])
        right += float((out.argmax(1) == labels).sum())
        loss += float(F.cross_entropy(out, labels, reduction="sum"))
    return right / len(y), loss / len(y)
