"""The one cut of a network into body and head: outputs = head(body(x)), features = body(x).

The head is the last layer with parameters unless it is named; the body is all that comes before it.
Methods that keep layers apart ask `find_head` which names are the head's. Methods that work on
features take a `Split`, whose functions are those of the whole network's point. It holds for every
network that ends with its head: the built-in ones, and any module whose output is what the head
gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import grad

from coterie.core.errors import BadInput
from coterie.core.freezing import matches_pattern
from coterie.core.method import Batch
from coterie.core.model import Model, layer_of
from coterie.core.options import NonNegativeInt
from coterie.core.point import Leaves, Point, Vector

# how many of the last layers, or the name of a part of the network
Head = NonNegativeInt | str
# (the whole network's parameters, features [B, d], further parameters ...) -> scalar
Objective = Callable[..., Tensor]


def find_head(
    model: Model, head: Head, who: str, least: int = 0, whole: bool = False
) -> Callable[[str], bool]:
    """Tells whether a name is the head's.

    least: layers that it has at least. whole: whether it may be all of the network.
    """
    layers = list(dict.fromkeys(map(layer_of, model.shapes)))
    if isinstance(head, str):
        inside = [name for name in model.shapes if matches_pattern(name, head)]
        if not inside or (len(inside) == len(model.shapes) and not whole):
            raise BadInput(
                f"{who}.head = {head}: give a number of last layers, or the name of a part of "
                f"{model.name} that trains and leaves a body, such as {layers[-1]}"
            )
        return lambda name: matches_pattern(name, head)
    if len(layers) == 1 and head:
        raise BadInput(
            f"{who} cuts a network into body and head, and {model.name} has only one layer: give "
            "another --model, or use fedavg or local"
        )
    most = len(layers) - (not whole)
    if not least <= head <= most:
        why = "" if whole else " and at least one must be shared"
        raise BadInput(
            f"{who}.head = {head}, but {model.name} has {len(layers)} layers with parameters{why}: "
            f"give {least} to {most}, another --model, or use local"
        )
    return model.head(head)


class Split:
    """A network as head(body(x)), both as functions of the whole network's point."""

    def __init__(self, model: Model, head: Head, who: str, linear: bool = False) -> None:
        self.inside = find_head(model, head, who)
        self.part = _find_part(model, self.inside, who)
        self.model, self.body = model, model.cut_before(self.part)
        layer = model.layer(self.part)
        dense = [one for one in layer.modules() if isinstance(one, nn.Linear)]
        if not dense or (linear and self._own() != {self.name("weight"), self.name("bias")}):
            raise BadInput(
                f"{who} needs a head that {'is one' if linear else 'has an'} nn.Linear"
                f"{' with a bias' * linear}, and {self.part} of {model.name} is a "
                f"{type(layer).__name__}: name another part with --head, or use fedper"
            )
        there = {self.name(k) for k, _ in layer.named_parameters()}
        if next(layer.buffers(), None) is not None or there - self._own() - set(model.frozen):
            raise BadInput(
                f"{who} cannot take {self.part} of {model.name} as its head: it keeps running "
                "statistics or shares weights with other layers; name another part with --head"
            )
        self.width = dense[0].in_features  # numbers per row that the head is given

    def name(self, leaf: str) -> str:
        """A tensor of the head by its name in the network."""
        return f"{self.part}.{leaf}"

    def _own(self) -> set[str]:
        return {name for name in self.model.shapes if self.inside(name)}

    def features(self, w: Point, batch: Batch) -> Tensor:
        """What the body gives [B, d], as the model is used."""
        return self.body.logits(w, batch)

    def head(self, params: Leaves, z: Tensor, batch: Batch) -> Tensor:
        """What the head gives for features, in training mode."""
        return self.model.run_part(self.part, Point(params), z, batch)

    def shift(self, w: Point, by: Tensor) -> Point:
        """The network whose linear head is given its features plus `by`: another bias."""
        bias = w.params[self.name("bias")] + w.params[self.name("weight")] @ by
        return Point(w.params | {self.name("bias"): bias}, w.buffers)

    def gradients_of(
        self, objective: Objective, w: Point, batch: Batch, *more: Point
    ) -> tuple[Vector, ...]:
        """Gradients by the network and by further parameters of `objective(params, z, *more)`,
        where z are the features of the batch in training mode.
        """
        found, _ = self.gradients_and(lambda *given: (objective(*given), ()), w, batch, *more)
        return found

    def gradients_and(
        self, objective: Callable[..., tuple[Tensor, Any]], w: Point, batch: Batch, *more: Point
    ) -> tuple[tuple[Vector, ...], Any]:
        """The same of an objective that gives more than its value, and what it gives."""

        def value(params: Leaves, *others: Leaves) -> tuple[Tensor, Any]:
            z, fresh = self.body.forward(Point(params, w.buffers), batch)
            loss, beside = objective(params, z, *others)
            return loss, (fresh, beside)

        places = tuple(range(1 + len(more)))
        (own, *rest), (fresh, beside) = grad(value, argnums=places, has_aux=True)(
            w.params, *(point.params for point in more)
        )
        vector = Vector(own, {k: b.detach() for k, b in fresh.items()})
        return (vector, *map(Vector, rest)), beside


def _find_part(model: Model, inside: Callable[[str], bool], who: str) -> str:
    """The name of the one part of the network that holds the head's parameters and no others."""
    mine = [layer_of(name).split(".") for name in model.shapes if inside(name)]
    shared = mine[0] if mine else []
    while shared and any(names[: len(shared)] != shared for names in mine):
        shared = shared[:-1]
    part = ".".join(shared)
    alone = all(inside(name) for name in model.shapes if matches_pattern(name, part))
    if not part or not alone:
        raise BadInput(
            f"{who} works on the features that the head of {model.name} is given, so that its head "
            "must be one part of the network: give --head 1, or the name of such a part"
        )
    return part
