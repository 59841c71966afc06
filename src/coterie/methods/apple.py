"""APPLE. Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning.
IJCAI 2022, Algorithm 1. arXiv:2110.08394.

Client i owns a core model w_i and directed relationships p_i1, ..., p_iN of any sign. It uses
    v_i = sum_j p_ij w_j
over the core models of all clients, which the server passes on, and descends on w_i and p_i:
    min_{w_i, p_i} f_i(v_i) + lambda(r) mu/2 |p_i - p_0|^2,   p_0 = (n_1, ..., n_N) / n.
lambda(r) fades over the first L rounds, as 0.001^(r / L) or (1 + cos(pi r / L)) / 2, and is 0 then.
w_i travels, p_i stays home. Interpretations: all w_i start alike (at random in the authors' code,
which has mu for mu/2); running statistics of v_i are kept with w_i; used are the newest w_j, all of
which are sent in every round (the paper may sample them). p_ii, about 1/N, stands before gradients
by w_i: `core_scale` makes up for it (PFLlib: N; paper: 1). Nobody takes from who comes later.
"""

from math import cos, pi
from typing import Literal

import torch

from coterie.core.method import Batch, Exchange, Facts, Method, Newcomer, Pass, Train
from coterie.core.model import Model, begin, descend
from coterie.core.options import NonNegative, NonNegativeInt
from coterie.core.point import mean, stack
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods import relationships as parts
from coterie.methods.bounds import DEFAULT_HINT, check_clients
from coterie.methods.declare import method

NOTES = {"own": LoggedQuantity("own core model's weight p_ii", QuantityKind.COURSE)}


@method(when="few clients, any of which may help or harm any other")
def apple(
    model: Model,
    train: Train,
    mu: NonNegative = 0.1,
    lr_p: NonNegative = 0.001,
    hold_rounds: NonNegativeInt = 16,
    fade: Literal["exponential", "cosine"] = "exponential",
    core_scale: NonNegative = 0.0,
) -> Method:
    """Every client learns how much of each other client's core model it takes.

    mu: how strongly p is held to the shares of rows at first.
    lr_p: learning rate of p; 0: it stays as it starts.
    hold_rounds: L, rounds in which p is held; 0: none.
    fade: how the hold fades, "exponential" or "cosine".
    core_scale: factor on the core models' gradients; 0: the number of clients.
    """
    of_p = train._replace(lr=lr_p, weight_decay=0.0)

    def hold(r: int) -> float:
        part = r / hold_rounds if r < hold_rounds else 1.0
        faded = (1 + cos(pi * part)) / 2 if fade == "cosine" else float(0.001**part)
        return faded if part < 1 else 0.0

    def init(rng: Rng, facts: Facts) -> parts.AppleServer:
        check_clients("apple", facts.clients, lambda n: 8 * model.size * n, DEFAULT_HINT)
        n = facts.sizes if train.weighting == "size" else torch.ones_like(facts.sizes)
        models = stack([model.init(rng)] * facts.clients)
        return parts.AppleServer(models, n / n.sum(), torch.tensor(hold(0)), torch.tensor(0))

    def step(c: parts.AppleCarry, batch: Batch) -> parts.AppleCarry:
        core, p = c.core.w, c.p.w
        g = model.grad(parts.mix_cores(core, p, c.sent), batch)
        gradient = parts.differentiate_relationships(core, p, c.sent, g, mu)
        own = (core_scale or len(c.sent.share)) * p.params["own"] * g
        return c._replace(
            core=descend(c.core, own, train, batch), p=descend(c.p, gradient, of_p, batch)
        )

    trip = Exchange(
        send=lambda s, i, rng: parts.ApplePayload(s.models, s.share, s.hold, torch.tensor(i)),
        start=lambda s, sent: parts.AppleCarry(begin(s.core, train), begin(s.p, of_p), sent),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, s, sent: (parts.AppleState(c.core.w, c.p.w), c.core.w),
        receive=lambda s, replies, rng: parts.keep_cores(s, replies, hold(int(s.round) + 1)),
    )
    return Method(
        init=init,
        join=lambda sent, rng: parts.start_client(sent),
        round=(trip,),
        personal=lambda s, sent: parts.mix_cores(s.core, s.p, sent),
        views={"global": lambda s, sent: mean(sent.models, sent.share)},
        newcomer=Newcomer("learns its own core model, and what it takes of each other one"),
        client_notes=lambda s: {"own": s.p.params["own"]},
        describes=NOTES,
    )
