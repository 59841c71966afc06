"""KT-pFL. Zhang, Guo, Ma, Wang, Xu, Wu: Parameterized Knowledge Transfer for Personalized Federated
Learning. NeurIPS 2021, Algorithms 1 (soft predictions, any architectures) and 2 (parameters, one
architecture).

min_{w, c} sum_n D_n/D [ f_n(w^n) + lam KL(sum_m c[n,m] s_m || s_n) ] + rho |c - 1/N|^2
over the round's public rows, with s_n = softmax(z_n / T).
Each round: private training (5), distillation (6), then steps on c (7).

Readings taken. c[n,m] is what n takes from m, itself included; rows are kept on the simplex, else
the KL is none. (7) takes one step for each public mini-batch, on the uploaded predictions, with the
mean over samples and without D_n/D, which would only rescale row n's step (`literal_eq7` restores
both). Of the clients S of a round, n is taught by c[n,S] / sum c[n,S]; only c[S,S] moves, and each
row keeps the mass it had on S. With `peers` a row of c has m + 1 entries (`ktpfl_peers`), for
servers that cannot keep N x N numbers.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Exchange, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, sgd
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, blend, flat, mean, pick
from coterie.core.rng import Rng
from coterie.core.values import Count, NonNegative, Positive, Share, Whole
from coterie.methods.bounds import check_clients
from coterie.methods.declare import Tasks, method, variant
from coterie.methods.knowledge import (
    Knowledge,
    RowNorm,
    admit,
    descend,
    model_slope,
    prediction_slope,
    put,
    shares,
    similar,
    topk,
    uniform,
)
from coterie.methods.ktpfl_peers import (
    Pace,
    Step,
    admit_few,
    descend_few,
    fill,
    heard_by,
    model_slope_few,
    prediction_slope_few,
    taught,
    uniform_few,
    visible,
)
from coterie.methods.peers import Rows, few, mixed, noted, sketch
from coterie.methods.soft import Answers, Public, Server, over_predictions, soft

LEARNING = ("rate_c", "rho", "row_norm", "literal_eq7", "peers")  # options of the steps on c
SQUARE = 28  # bytes per pair of clients at the peak of a round
PEERS = "give --peers 50 to learn from the 50 nearest, or fewer clients"
COEFFICIENTS = {"c": Note("knowledge coefficients c", Kind.MATRIX)}
BEFORE_MIXING = {
    "before_mixing": Note("after private training, before it takes from others", Kind.VIEW)
}


def start_c(name: str, facts: Facts, peers: int, said: int, way: str) -> Knowledge:
    """c_0, once the server is known to have room for it and for `said` numbers per client."""
    sparse = few(peers, facts.clients)

    def needed(n: int) -> int:
        pairs = n * 24 * (peers + 1) if few(peers, n) else SQUARE * n * n
        return pairs + int(4 * 4 * said * facts.rate * n)

    check_clients(name, facts.clients, needed, "" if sparse else way)
    return uniform_few(facts, peers) if sparse else uniform(facts)


def one_more(server: Server) -> Server:
    """Room for one more client."""
    return admit_few(server) if isinstance(server.mix.c, Rows) else admit(server)


def coefficients(server: Server) -> dict[str, Tensor]:
    """c for reports."""
    c = server.mix.c
    c = noted(visible(c)) if isinstance(c, Rows) else c
    return {} if c is None else {"c": c}


@method(
    when="networks differ, or weights may not leave; few clients",
    without=("weighting",),
    tasks=Tasks(lambda task: task.has_output_per_class, "mixes class probabilities"),
)
def ktpfl(
    model: Model,
    train: Train,
    draw: Count = 300,
    public_batch: Count = 256,
    distil_epochs: Count = 1,
    distil_rate: NonNegative = 0.0,
    temperature: Positive = 10.0,
    lam: NonNegative = 1.0,
    T2_scale: bool = False,
    rate_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
    literal_eq7: bool = False,
    mix: Literal["learned", "similar", "topk"] = "learned",
    k: Count = 5,
    peers: Whole = 0,
) -> Method:
    """Each client is taught by its own learned mixture of everyone's soft predictions on public
    rows.

    draw: public rows per round. distil_rate: 0 for the private rate. T2_scale: the distillation
    loss times T^2. rate_c: eta_3. literal_eq7: the sum over samples of (2) and the D_n/D of (7).
    mix: "learned", or a fixed rule on the round's predictions: "similar" (Sim-pFL), "topk"
    (TopK-pFL, the k most similar). peers: how many others teach a client, those of the nearest
    predictions when it first speaks; 0: all.
    """
    if peers and mix != "learned":
        raise BadInput(
            f"ktpfl.peers = {peers} is for a learned c, but ktpfl.mix = '{mix}': leave out one"
        )
    rules: dict[str, Callable[[Tensor], Tensor]] = {"similar": similar, "topk": partial(topk, k=k)}
    rule = rules.get(mix)

    def start(facts: Facts) -> Knowledge:
        name = {"similar": "sim-pfl", "topk": "topk-pfl"}.get(mix, "ktpfl")
        way = "use fedmd, or fewer clients" if rule else PEERS
        return start_c(name, facts, peers, draw * model.outputs, way)

    def hear(server: Server, replies: Replies) -> Server:
        ids, s, (c, data) = replies.ids, replies.upload, server.mix
        if isinstance(c, Rows):
            c = fill(c, ids, sketch([s]))
        elif rule:
            c = put(c, ids, c[ids][:, ids].sum(1, keepdim=True) * rule(s))
        return server._replace(mix=Knowledge(c, data), ids=ids, said=s)

    def teach(server: Server, i: int) -> Tensor:
        if isinstance(server.mix.c, Rows):
            return taught(server.mix.c, i, server.ids, server.said)
        target: Tensor = torch.tensordot(shares(server.mix.c[i, server.ids]), server.said, dims=1)
        return target

    def learn(server: Server) -> Server:
        if rule:
            return server
        c, data = server.mix
        if isinstance(c, Rows):
            return server._replace(mix=Knowledge(learn_few(server), data))
        part = data[server.ids][:, None]
        slopes = [
            lambda block, s=s: (
                lam * prediction_slope(block, s) * (part * s.shape[1] if literal_eq7 else 1)
            )
            for s in server.said.split(public_batch, dim=1)
        ]
        return server._replace(
            mix=Knowledge(descend(c, server.ids, slopes, rate_c, rho, row_norm), data)
        )

    def learn_few(server: Server) -> Rows:
        part = server.mix.data[server.ids][:, None]
        steps = [
            Step(
                s.flatten(1), prediction_slope_few, lam * (part if literal_eq7 else 1 / s.shape[1])
            )
            for s in server.said.split(public_batch, dim=1)
        ]
        return descend_few(server.mix.c, server.ids, steps, Pace(rate_c, rho, row_norm))

    match = soft(model, temperature, lam, T2_scale)
    public = Public(draw, public_batch, distil_epochs, distil_rate)
    answers = Answers(start, hear, teach, learn)
    method = over_predictions(model, train, match, public, answers)
    described = {**method.describes, **COEFFICIENTS}
    return method._replace(admit=one_more, notes=coefficients, describes=described)


sim_pfl = variant(
    ktpfl,
    "sim_pfl",
    "KT-pFL that mixes by the cosine similarity of predictions (the authors' code: temperature 1).",
    when="as ktpfl with fixed weights by similarity",
    mix="similar",
    without=(*LEARNING, "k"),
)
topk_pfl = variant(
    ktpfl,
    "topk_pfl",
    "KT-pFL by the equal mean of the `k` clients with the nearest predictions, itself included.",
    when="as ktpfl with the k most similar clients",
    mix="topk",
    without=LEARNING,
)


class Client(NamedTuple):
    """A client's state where models are mixed."""

    w: Point  # its own model
    before: Point  # the same after private training, before the round's mixing


@method(when="as ktpfl over weights, for one network", without=("weighting",))
def ktpfl_h(
    model: Model,
    train: Train,
    mu: Share = 0.02,
    rate_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
    peers: Whole = 0,
) -> Method:
    """KT-pFL over parameters: w^n <- w^n - mu (w^n - wbar_n), wbar_n = sum_m c[n,m] w^m.

    mu = 2 eta_2 R: the distance (10) is the sum of squares, its mean over parameters would move
    nothing. The c step (11) uses distances from the mean model in units of their mean, so that it
    does not depend on the weights' scale. peers: how many others a client takes from, those of the
    nearest models when it is first active; 0: all.
    """
    begin, step = sgd(model, train)

    def learn(server: Server, replies: Replies, rng: Rng) -> Server:
        (c, data), ids, w = server.mix, server.ids, flat(server.said)
        if isinstance(c, Rows):
            return server._replace(mix=Knowledge(learn_few(c, ids, w), data))
        c = descend(c, ids, [partial(model_slope, w=w)], rate_c, rho, row_norm)
        return server._replace(mix=Knowledge(c, data))

    def learn_few(c: Rows, ids: Tensor, w: Tensor) -> Rows:
        apart = w - w.mean(0)
        unit = apart.square().sum(1).mean().clamp(min=torch.finfo(w.dtype).tiny)
        step = Step(apart, model_slope_few, 1 / unit)
        return descend_few(c, ids, [step], Pace(rate_c, rho, row_norm))

    def init(rng: Rng, facts: Facts) -> Server:
        seed = torch.tensor(int(rng.integers(2**63)))
        return Server(seed, start_c("ktpfl-h", facts, peers, model.size, PEERS))

    def join(seed: Tensor, rng: Rng) -> Client:
        w = model.start(int(seed))
        return Client(w, w)

    def hear(server: Server, replies: Replies, rng: Rng) -> Server:
        ids, (c, data) = replies.ids, server.mix
        if isinstance(c, Rows):
            c = fill(c, ids, sketch(replies.upload.params.values()))
        return server._replace(mix=Knowledge(c, data), ids=ids, said=replies.upload)

    def answer(server: Server, i: int, rng: Rng) -> Point:
        c, ids = server.mix.c, server.ids
        said: Point = server.said
        if isinstance(c, Rows):
            return pick(mixed(said, heard_by(c, i, ids)), 0)
        return mean(said, shares(c[i, ids]))

    return Method(
        init=init,
        join=join,
        round=(
            Exchange(
                send=lambda server, i, rng: server.seed,
                start=lambda state, seed: begin(state.w),
                passes=(Pass(step, train.plan()),),
                finish=lambda c, state, seed: (Client(c.w, c.w), c.w),
                receive=hear,
            ),
            Exchange(
                send=answer,
                start=lambda state, wbar: blend(state.w, wbar, mu),
                passes=(),
                finish=lambda w, state, wbar: (state._replace(w=w), ()),
                receive=learn,
            ),
        ),
        personal=lambda state, seed: state.w,
        views={"before_mixing": lambda state, seed: state.before},
        admit=one_more,
        newcomer=Newcomer("trains, held to the mean of the clients' last models", rounds="all"),
        notes=coefficients,
        describes={**COEFFICIENTS, **BEFORE_MIXING},
    )
