"""What the networks are put together from: named layers, and the shapes that they take."""

from typing import Annotated

from torch import nn

from coterie.core.errors import BadInput
from coterie.core.options import Range

Shape = tuple[int, ...]
Units = Annotated[int, Range(1, 2**24)]  # of one layer
Depth = Annotated[int, Range(1, 256)]  # layers on top of each other
Width = Annotated[float, Range(0, 64, low_open=True)]  # times the published sizes


def chain(**layers: nn.Module) -> nn.Sequential:
    """Layers in order, under their names."""
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def with_relu(layer: nn.Module, *then: nn.Module) -> nn.Sequential:
    """A layer, its ReLU and what follows, such as a pool."""
    return nn.Sequential(layer, nn.ReLU(), *then)


def scale_size(size: int, width: float) -> int:
    """The size of a layer in a network that is `width` times as wide."""
    return max(1, round(size * width))


def check_image_shape(name: str, shape: Shape, least: int) -> Shape:
    """The shape, once it is known to be that of images with sides of at least `least`."""
    if len(shape) != 3 or min(shape[1:]) < least:
        wanted = "[channels, height, width]" if len(shape) != 3 else f"of at least {least}x{least}"
        raise BadInput(
            f"net '{name}' takes images {wanted}, but the input is {format_shape(shape)}: "
            f"{suggest_network(shape)}"
        )
    return shape


def suggest_network(shape: Shape) -> str:
    """The way out of a shape that a network cannot take: networks that can take it."""
    return (
        "use smallcnn, dnn or mlr" if len(shape) == 3 and min(shape[1:]) >= 4 else "use dnn or mlr"
    )


def format_shape(shape: Shape) -> str:
    """A shape as text, such as 1x28x28."""
    return "x".join(map(str, shape)) or "empty"
