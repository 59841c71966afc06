"""What a method needs beyond training rows, from the method as it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from coterie.core.method import Stage, Train, stages_of
from coterie.core.model import Model


def needs_of(builder: Callable[..., Any]) -> tuple[str, ...]:
    """The needs of all its stages, as in `Method.needs`, with default options and options."""
    return tuple(sorted({need for stage in build_stages(builder) for need in stage.method.needs}))


def build_stages(builder: Callable[..., Any]) -> tuple[Stage, ...]:
    """The stages of a method for a small network, with default options and options."""
    return tuple(stages_of(builder(Model(_build_network, name="small"), Train())))


def _build_network() -> nn.Module:
    """A network with which every method can be built: layers to share, and BatchNorm."""
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
