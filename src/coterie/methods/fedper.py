"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019 (arXiv 1912.00818),
Algorithms 1 and 2.

min_{base, head_1..N} sum_i (n_i / n) f_i(base, head_i): clients train both together, the base is averaged as in FedAvg, the
head never leaves its client. Evaluated: the averaged base with the client's own head.
"""

from collections.abc import Callable

from ..errors import BadInput
from ..method import Method, Train
from ..model import Model
from ..point import Point, merge, split
from .fedavg import Global, fedavg


def last_layers(model: Model, layers: int) -> Callable[[str], bool]:
    """Tells whether a name belongs to the last layers; refuses more of them than there are."""
    there = len({name.rpartition(".")[0] for name in model.shapes})
    if not 0 <= layers <= there:
        raise BadInput(f"head = {layers}, but {model.name} has {there} layers with parameters: give 0 to {there}")
    return model.head(layers)


def keep_home(model: Model, train: Train, mine: Callable[[str], bool]) -> Method:
    """FedAvg of all layers but those whose name is `mine`: they start at random with each client and stay there."""

    def whole(state: Point, payload: Point) -> Point:
        return merge(state, payload, model.shapes)

    def finish(c, state, payload):
        return split(c.w, mine)

    base = fedavg(model, train)
    trip = base.round[0]
    return base._replace(
        init=lambda rng, facts: Global(split(model.init(rng), mine)[1]),
        join=lambda payload, rng: split(model.init(rng), mine)[0],
        round=(trip._replace(start=lambda state, payload: trip.start((), whole(state, payload)), finish=finish),),
        personal=whole,
    )


def fedper(model: Model, train: Train, head: int = 1) -> Method:
    """FedAvg of the base; the last `head` layers stay with their client."""
    return keep_home(model, train, last_layers(model, head))
