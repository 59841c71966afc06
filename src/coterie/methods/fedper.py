"""FedPer. Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers.
2019 (arXiv:1912.00818), Algorithms 1 and 2.

    min_{base, head_1..N} sum_i (n_i / n) f_i(base, head_i)

Clients train both together, the base is averaged as in FedAvg, the head never leaves its client.
Evaluated: the averaged base with the client's own head. The paper starts heads at random; here all
start alike, at the common start of every method.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.freezing import select_parameters
from coterie.core.method import Batch, Facts, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.point import Leaves, Point, Vector, merge, split, zeros
from coterie.core.rng import Rng
from coterie.core.split import Head, find_head
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

Step = Callable[[Descent, Batch], Descent]
Gradient = Callable[[Point, Batch], Vector]


class SharedLayers(NamedTuple):
    """The server's state, and all that travels down: the common layers, and the seed of the start
    of the others."""

    base: Point
    seed: Tensor


def restrict_step(
    model: Model, train: Train, moves: Callable[[str], bool], gradient: Gradient | None = None
) -> Step:
    """A step of the run's optimizer on the layers that `moves` names; its state is by parameter, so
    that of the others rests too.

    gradient: of the objective; None: of the loss.
    """
    gradient = gradient or model.grad

    def picked(new: Leaves, old: Leaves) -> Leaves:
        return {k: new[k] if moves(k) else a for k, a in old.items()}

    def step(c: Descent, batch: Batch) -> Descent:
        g = gradient(c.w, batch)
        if train.clip_norm:  # by the length of what moves
            g = Vector(picked(g.params, zeros(g).params), g.fresh)
        new = descend(c, g, train, batch)
        w = Point(picked(new.w.params, c.w.params), picked(new.w.buffers, c.w.buffers))
        pairs = zip(new.u, c.u, strict=True)
        return Descent(w, tuple(Vector(picked(n.params, o.params)) for n, o in pairs))

    return step


def keep_layers_local(model: Model, train: Train, mine: Callable[[str], bool]) -> Method:
    """FedAvg of all layers but those whose name is `mine`; these start from the common seed and
    stay with their client."""

    def init(rng: Rng, facts: Facts) -> SharedLayers:
        seed = int(rng.integers(2**63))
        return SharedLayers(split(model.start(seed), mine)[1], torch.tensor(seed))

    def whole(own: Point, shared: SharedLayers) -> Point:
        return merge(own, shared.base, model.shapes)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server,
        start=lambda own, shared: begin(whole(own, shared), train),
        finish=lambda c, own, shared: split(c.w, mine),
        receive=lambda server, replies, rng: server._replace(
            base=replies.average(replies.upload, train.weights(replies))
        ),
    )
    fit_own = Pass(restrict_step(model, train, mine), train.plan())
    alone = trip._replace(passes=(fit_own,), receive=keep_server)
    rule = Newcomer("trains its own layers, the common ones held", round=(alone,))
    return base._replace(
        init=init,
        join=lambda shared, rng: split(model.start(int(shared.seed)), mine)[0],
        round=(trip,),
        personal=whole,
        newcomer=rule if any(map(mine, model.shapes)) else None,
    )


@method(
    when="classes differ between clients: the last layers stay at home",
    uploads="mean",
    rows="gradients",
)
def fedper(model: Model, train: Train, head: Head = 1, own: str = "") -> Method:
    """FedAvg of the base; the head, the last layer unless named, stays with its client.

    head: the head, which stays with its client: how many of the last layers, or the name of a part
        of the network.
    own: the parameters that stay instead, by the beginnings of their names or patterns such as
        *lora*.
    """
    if not own:
        return keep_layers_local(model, train, find_head(model, head, "fedper"))
    if head != 1:
        raise BadInput(
            f"fedper.own = '{own}' says what stays with a client, and so does head = {head}: leave "
            "out one of them"
        )
    names = select_parameters(own, model.shapes, "fedper.own", model.name)
    if names == set(model.shapes):
        raise BadInput(
            f"fedper.own = '{own}' leaves nothing of {model.name} to share: name less, or use local"
        )
    return keep_layers_local(model, train, names.__contains__)
