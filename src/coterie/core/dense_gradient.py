"""The gradient of a network of dense layers and ReLUs in closed form.

It is what autograd gives, from a third of the operations; autograd under vmap also takes a second
to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.task import RowFunction, class_losses, squared_losses

RELU = ""  # stands for a ReLU among the names of dense layers
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _class_gradients(logits: Tensor, y: Tensor) -> Tensor:
    one_hot = y.unsqueeze(-1) == torch.arange(logits.shape[-1])
    return F.softmax(logits, -1) - one_hot.to(logits.dtype)


def _squared_gradients(output: Tensor, y: Tensor) -> Tensor:
    return output - y.reshape(output.shape)


# The gradient of a loss of rows in the network's outputs.
OUTPUT_GRADIENTS: dict[RowFunction, RowFunction] = {
    class_losses: _class_gradients,
    squared_losses: _squared_gradients,
}


def find_dense_layers(net: nn.Module) -> list[str] | None:
    """The names of a network's dense layers in order, RELU where one stands; None for a network
    that is, or may be, anything else than rows that are flattened, dense layers and ReLUs.
    """
    found = list(_iterate_layers(net, ""))
    layers = [layer for _, layer in found]
    names = []
    for place, (name, layer) in enumerate(found):
        plain = "forward" not in vars(layer) and not any(vars(layer).get(h) for h in HOOKS)
        if not plain or any(layer is other for other in layers[:place]):
            return None
        if type(layer) is nn.Flatten and not place and (layer.start_dim, layer.end_dim) == (1, -1):
            continue
        if type(layer) is nn.Linear:
            names.append(name)
        elif type(layer) is nn.ReLU:
            names.append(RELU)
        else:
            return None
    return names if any(names) and type(layers[0]) is nn.Flatten else None


def _iterate_layers(net: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of sequences within sequences."""
    if type(net) is not nn.Sequential or any(vars(net).get(hook) for hook in HOOKS):
        yield name, net
        return
    for inner, layer in vars(net)["_modules"].items():  # one that stands twice is there twice
        yield from _iterate_layers(layer, f"{name}.{inner}" if name else inner)


def forward_backward(
    names: Sequence[str], params: dict[str, Tensor], x: Tensor, delta_of: Callable[[Tensor], Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The outputs of rows, and the gradient of a loss whose gradients in the outputs are given."""
    h = x.flatten(1)
    taken = []  # what each layer was given
    for name in names:
        taken.append(h)
        h = F.linear(h, params[f"{name}.weight"], params.get(f"{name}.bias")) if name else h.relu()
    delta, gradient = delta_of(h), {}
    first = next(place for place, name in enumerate(names) if name)
    for place in range(len(names) - 1, first - 1, -1):
        name, given = names[place], taken[place]
        if not name:
            delta = delta * (given > 0)
            continue
        gradient[f"{name}.weight"] = delta.T @ given
        if f"{name}.bias" in params:
            gradient[f"{name}.bias"] = delta.sum(0)
        if place > first:
            delta = delta @ params[f"{name}.weight"]
    return h, gradient
