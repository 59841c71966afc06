"""FedKD. Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge
distillation. Nature Communications 13, 2032, 2022, Algorithm 1. arXiv:2108.13323.

A mentor t stays on its client and learns beside the mentee s, which travels, each from labels, the
other's probabilities and its features h; the less so the worse both are:
    L_t = f_i(t) + (KL(p_s || p_t) + |h_t - W h_s|^2 / d) / (f_i(t) + f_i(s)),
    L_s = f_i(s) + (KL(p_t || p_s) + |h_t - W h_s|^2 / d) / (f_i(t) + f_i(s)),
W learnt by the client. Of every matrix of s's update go up, and of the mean update down, the fewest
singular values whose squares hold a share T of all; T grows by rounds. Interpretations: the other's
probabilities and the divisor, at least 0.1, are constants (authors' code: gradients through both);
features are what the head is given (paper: all hidden states, and attentions); W starts as the
identity. Deviation: truncated updates travel as full matrices; `sent` logs their factors' share.
"""

import torch

from coterie.core.method import Batch, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, begin, descend
from coterie.core.options import NonNegative, PositiveInt, PositiveShare
from coterie.core.point import Point
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods import mentoring as kd
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.fml import build_private_model


@method(when="own networks may be larger than what can travel", uploads="mean")
def fedkd(
    model: Model,
    train: Train,
    distil: NonNegative = 1.0,
    features: NonNegative = 1.0,
    energy: PositiveShare = 0.95,
    energy_end: PositiveShare = 0.98,
    energy_rounds: PositiveInt = 100,
    auxiliary: str = "",
    head: Head = 1,
) -> Method:
    """A large own model and a small common one that teach each other; updates of low rank travel.

    distil: weight of the other's probabilities.
    features: weight of the distance between their features.
    energy: T, share of an update's energy that is sent in the first round; 1: all of it.
    energy_end: the same in the end.
    energy_rounds: rounds in which it grows.
    auxiliary: another network for the mentor, such as "dnn:hidden=20"; empty: the same network.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    private = build_private_model(model, auxiliary)
    mentor, mentee = Split(private, head, "fedkd"), Split(model, head, "fedkd")
    gradients = kd.build_mentor_gradients(mentor, mentee, distil, features)
    base = fedavg(model, train)

    def share_at(r: int) -> torch.Tensor:
        return torch.tensor(energy + (energy_end - energy) * min(1.0, (r + 1) / energy_rounds))

    def join(sent: kd.KDPayload, rng: Rng) -> kd.KDState:
        link = Point({"W": torch.eye(mentor.width, mentee.width)})
        return kd.KDState(sent.w if private is model else private.init(rng), link, torch.ones(()))

    def step(c: kd.KDCarry, batch: Batch) -> kd.KDCarry:
        found = gradients(c.mentor.w, c.mentee.w, c.link.w, batch)
        return kd.KDCarry(*(descend(one, g, train, batch) for one, g in zip(c, found, strict=True)))

    def receive(server: kd.KDServer, replies: Replies, rng: Rng) -> kd.KDServer:
        new = base.round[0].receive(server, replies, rng).w
        w, _ = kd.compress_update(server.w, new, server.energy)
        return kd.KDServer(w, share_at(int(server.round) + 1), server.round + 1)

    trip = base.round[0]._replace(
        send=lambda server, i, rng: kd.KDPayload(server.w, server.energy),
        start=lambda s, sent: kd.KDCarry(*(begin(w, train) for w in (s.mentor, sent.w, s.link))),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, s, sent: kd.close_round(c, sent),
        receive=receive,
    )
    return base._replace(
        init=lambda rng, facts: kd.KDServer(model.init(rng), share_at(0), torch.tensor(0)),
        join=join,
        round=(trip,),
        personal=lambda s, sent: s.mentor,
        views={"global": lambda s, sent: sent.w},
        model_of={"personal": private},
        newcomer=Newcomer("trains its mentor beside the received mentee"),
        client_notes=lambda s: {"sent": s.sent},
        describes=kd.NOTES,
    )
