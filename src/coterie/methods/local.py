"""Local training: no federation. Every client descends alone from the common start, as many steps
as FedAvg gives it."""

from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.method import Exchange, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Model, optimize
from coterie.methods.declare import method


class LocalServer(NamedTuple):
    """The server's state: the seed of the common start, all that ever travels."""

    seed: Tensor


@method(
    when="always, as the baseline: what clients reach alone, without traffic",
    without=("weighting",),
    uploads="nothing",
    rows="gradients",
)
def local(model: Model, train: Train) -> Method:
    """Each client trains alone."""
    begin, step = optimize(model, train)
    return Method(
        init=lambda rng, facts: LocalServer(torch.tensor(int(rng.integers(2**63)))),
        join=lambda seed, rng: model.start(int(seed)),
        round=(
            Exchange(
                send=lambda server, i, rng: server.seed,
                start=lambda w, seed: begin(w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, w, seed: (c.w, ()),
                receive=keep_server,
            ),
        ),
        personal=lambda w, seed: w,
        mixed=True,
        newcomer=Newcomer("trains alone", rounds="all"),
    )
