"""Networks that methods put together around another one: what a client uses then is more than one
pass through the network that it trains.

An assembly is named as in "mixture:components=3" and kept with a client's model under the option
`around` of its network, so that it is built again from its file.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.core.errors import BadInput
from coterie.core.model import Model, first_output
from coterie.core.options import split_spec
from coterie.networks.feature_heads import Memory, PolicyHead, ValveHead
from coterie.networks.probabilities import Near, mix_classes

AROUND = "around"


class Mixture(nn.Module):
    """Networks of one form whose class probabilities are mixed by shares."""

    def __init__(self, net: nn.Module, components: str) -> None:
        super().__init__()
        self.nets = nn.ModuleList(copy.deepcopy(net) for _ in range(int(components)))
        self.shares: Tensor
        self.register_buffer("shares", torch.full((int(components),), 1 / int(components)))

    def forward(self, x: Tensor) -> Tensor:
        return mix_classes(torch.stack([first_output(net(x)) for net in self.nets]), self.shares)


def remember(
    net: nn.Module, part: str, rows: str, width: str, classes: str, neighbours: str, reach: str
) -> nn.Module:
    """A network whose head, the named part, has a memory."""
    near = Near(int(neighbours), float(reach))
    memory = Memory(net.get_submodule(part), int(rows), int(width), int(classes), near)
    return replace_part(net, part, memory)


def add_policy(net: nn.Module, part: str, width: str) -> nn.Module:
    """A network whose head, the named part, has another beside it, and a policy before both."""
    return replace_part(net, part, PolicyHead(net.get_submodule(part), int(width)))


def add_valve(net: nn.Module, part: str, width: str) -> nn.Module:
    """A network with a valve before its head, the named part."""
    return replace_part(net, part, ValveHead(net.get_submodule(part), int(width)))


def replace_part(net: nn.Module, part: str, module: nn.Module) -> nn.Module:
    """A network with another module in the place of a part."""
    owner, _, leaf = part.rpartition(".")
    setattr(net.get_submodule(owner), leaf, module)
    return net


ASSEMBLIES: dict[str, Callable[..., nn.Module]] = {
    "mixture": Mixture,
    "memory": remember,
    "policy": add_policy,
    "valve": add_valve,
}


def assemble(net: nn.Module, around: str) -> nn.Module:
    """A network with what is put around it; itself for ""."""
    if not around:
        return net
    name, settings = split_spec(around)
    if name not in ASSEMBLIES:
        raise BadInput(
            f"around = {around}: this version knows no such assembly, only "
            f"{', '.join(ASSEMBLIES)}: read the model with the version that wrote it"
        )
    return ASSEMBLIES[name](net, **settings)


def assemble_model(model: Model, around: str) -> Model:
    """The same of a network as pure functions."""
    return Model(
        lambda: assemble(model.build(), around),
        model.goal,
        model.name,
        model.input_shape,
        model.options | {AROUND: around},
    ).with_bound(model.bounded)
