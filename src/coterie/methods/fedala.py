"""FedALA. Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for
Personalized Federated Learning. AAAI 2023, Algorithm 1. arXiv:2212.01197.

A client does not start its round at the global Theta but at a mixture of it with its own last model
Theta_i, element by element in the p top layers; the layers below take Theta whole:
    Theta^_i = Theta_i + (Theta - Theta_i) * W_i on the top,
    W_i <- clip(W_i - eta grad_W f_i(Theta^_i), 0, 1),
W_i learned on a random share s of the training rows, both models fixed. Then FedAvg's local
training from Theta^_i. The model used is Theta^_i for the Theta that is current. Written from the
abstract and from memory, not beside the paper's text. Interpretations: W_i starts at 1 and is kept
from round to round; at a client's first visit both models are the same and there is nothing to
learn; the learning "until convergence" of the second is `first_epochs` passes, afterwards one a
round.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, begin, layer_of, optimize
from coterie.core.options import NonNegative, PositiveInt, PositiveShare
from coterie.core.point import Leaves, Point
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg

FULL_BATCH = 1024  # rows per step where `batch` is 0


class FedALAState(NamedTuple):
    """A client's state."""

    own: Point  # Theta_i
    weights: Leaves  # W_i of the top layers, in [0, 1]
    visits: Tensor


class FedALACarry(NamedTuple):
    go: Descent
    own: Point
    received: Point
    weights: Leaves


def mix_layers(own: Point, received: Point, weights: Leaves) -> Point:
    """Theta^_i: the received model, on the top layers only as far as the weights say."""
    top = {k: own.params[k] + (received.params[k] - own.params[k]) * w for k, w in weights.items()}
    return Point(received.params | top, received.buffers)


@method(when="clients differ, and the last layers shall adapt to each", uploads="mean")
def fedala(
    model: Model,
    train: Train,
    top_layers: PositiveInt = 1,
    share: PositiveShare = 0.8,
    weight_lr: NonNegative = 1.0,
    first_epochs: PositiveInt = 10,
) -> Method:
    """FedAvg whose clients take from the global model's top layers what helps them.

    top_layers: p, how many of the top layers are mixed.
    share: s, the share of the training rows that the weights learn on.
    weight_lr: eta, the learning rate of the weights.
    first_epochs: passes of the weights in a client's second round; afterwards one per round.
    """
    known = len({layer_of(k) for k in model.shapes})
    if top_layers > known:
        raise BadInput(
            f"fedala.top_layers = {top_layers}: {model.name} has {known} layers with parameters, "
            f"give 1 to {known}"
        )
    inside = model.head(top_layers)
    _, local = optimize(model, train)

    def join(w: Point, rng: Rng) -> FedALAState:
        return FedALAState(
            w, {k: torch.ones_like(a) for k, a in w.params.items() if inside(k)}, torch.tensor(0)
        )

    def learn(c: FedALACarry, batch: Batch) -> FedALACarry:
        g = model.grad(mix_layers(c.own, c.received, c.weights), batch).params
        # d Theta^ / d W = Theta - Theta_i
        gradient = {k: g[k] * (c.received.params[k] - c.own.params[k]) for k in c.weights}
        return c._replace(
            weights={k: (w - weight_lr * gradient[k]).clamp(0, 1) for k, w in c.weights.items()}
        )

    def settle(c: FedALACarry, _: None) -> FedALACarry:
        return c._replace(go=c.go._replace(w=mix_layers(c.own, c.received, c.weights)))

    def steps(state: FedALAState, w: Point, rows: Tensor) -> Tensor:
        epoch = -(-max(1, int(int(rows) * share)) // (train.batch_size or FULL_BATCH))
        return torch.tensor(
            epoch * (0 if state.visits == 0 else first_epochs if state.visits == 1 else 1)
        )

    base = fedavg(model, train)
    aggregate = (
        Pass(learn, train.plan(epochs=1, steps=0, share=share, adaptive=True)),
        Pass(settle),
    )
    trip = base.round[0]._replace(
        start=lambda state, w: FedALACarry(begin(w, train), state.own, w, state.weights),
        passes=(*aggregate, Pass(lambda c, batch: c._replace(go=local(c.go, batch)), train.plan())),
        finish=lambda c, state, w: (FedALAState(c.go.w, c.weights, state.visits + 1), c.go.w),
        steps=steps,
    )
    use = trip._replace(
        passes=aggregate,
        finish=lambda c, state, w: (state._replace(own=c.go.w), ()),
        receive=keep_server,
        steps=None,
    )
    return base._replace(
        join=join,
        round=(trip,),
        personalize=use,
        personal=lambda state, w: state.own,
        views={"global": lambda state, w: w, "own": lambda state, w: state.own},
        newcomer=Newcomer("learns what to take of the received model, and trains"),
        client_notes=lambda state: {
            "taken": torch.cat([w.flatten() for w in state.weights.values()]).mean()
        },
        describes={
            "taken": LoggedQuantity("share taken from the global model", QuantityKind.COURSE),
            "own": LoggedQuantity(
                "the client's model before it takes from the global one", QuantityKind.VIEW
            ),
        },
    )
