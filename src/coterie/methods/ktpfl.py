"""KT-pFL. Zhang, Guo, Ma, Wang, Xu, Wu: Parameterized Knowledge Transfer for Personalized Federated
Learning. NeurIPS 2021, Algorithm 1 (soft predictions, any architectures). arXiv:2111.02862.

    min_{w, c} sum_n D_n/D [ f_n(w^n) + lam KL(sum_m c[n,m] s_m || s_n) ] + rho |c - 1/N|^2
over the round's public rows, with s_n = softmax(z_n / T).
Each round: private training (5), distillation (6), then steps on c (7).

Interpretations. The KL is multiplied by T^2, as is usual in distillation: without it, as the paper
writes it, its gradient at T = 10 is too small to change a client. c[n,m] is what n takes from m,
itself included; rows are kept on the simplex, else the KL is none. (7) takes one step for each
public mini-batch, on the uploaded predictions, with the mean over samples and without D_n/D, which
would only rescale row n's step (`literal_eq7` restores both). Of the clients S of a round, n is
taught by c[n,S] / sum c[n,S]; only c[S,S] moves, and each row keeps the mass it had on S. With
`peers` a row of c has m + 1 entries (`knowledge`), for servers that cannot keep N x N numbers.
Algorithm 2, over parameters, is `ktpfl_h`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.method import Facts, Method, Replies, Train, keep_server
from coterie.core.model import Model
from coterie.core.options import NonNegative, NonNegativeInt, Positive, PositiveInt
from coterie.methods import knowledge
from coterie.methods.declare import SEVERAL_OPTIMIZERS, SupportedTasks, method, variant
from coterie.methods.distillation import (
    DistillationServer,
    PublicOptions,
    ServerRules,
    build_distillation_method,
    match_soft,
)
from coterie.methods.knowledge import Knowledge, RowNorm

LEARNING_OPTIONS = (
    "lr_c",
    "rho",
    "row_norm",
    "literal_eq7",
    "peers",
)  # options of the steps on c


class Reading(NamedTuple):
    """Other interpretations of the paper than the one described above."""

    T2_scale: bool = True
    """The distillation loss times T^2."""
    literal_eq7: bool = False
    """The sum over samples of (2) and the D_n/D of (7)."""
    row_norm: RowNorm = "project"
    """How rows of c are kept on the simplex; "softmax5" is the authors' code."""


@method(
    when="networks differ, or weights may not leave; few clients",
    without=("weighting",),
    refuses={"keep_optimizer": SEVERAL_OPTIMIZERS},
    tasks=SupportedTasks(lambda task: task.has_output_per_class, "mixes class probabilities"),
)
def ktpfl(
    model: Model,
    train: Train,
    draw: PositiveInt = 300,
    public_batch_size: PositiveInt = 256,
    distil_epochs: PositiveInt = 5,
    distil_lr: NonNegative = 0.0,
    temperature: Positive = 3.0,
    lam: NonNegative = 1.0,
    T2_scale: bool = True,
    lr_c: NonNegative = 0.01,
    rho: NonNegative = 0.6,
    row_norm: RowNorm = "project",
    literal_eq7: bool = False,
    mix: Literal["learned", "similar", "topk"] = "learned",
    k: PositiveInt = 5,
    peers: NonNegativeInt = 0,
) -> Method:
    """Each client is taught by its own learned mixture of everyone's soft predictions on public
    rows.

    draw: public rows used in a round.
    public_batch_size: public rows per step.
    distil_epochs: passes over the round's public rows.
    distil_lr: learning rate of distillation; 0: that of private training.
    temperature: T, which softens the predictions; the paper has 10.
    lam: weight of distillation.
    T2_scale: multiply the distillation loss by T^2; no: the paper's.
    lr_c: eta_3, the learning rate of c; 0 keeps c at 1/N.
    rho: weight of the term that regularizes c towards 1/N.
    row_norm: how rows of c stay distributions: "project" onto the simplex after each step, or
        "softmax5" (the authors' code) at the end.
    literal_eq7: the sum over samples of (2) and the D_n/D of (7).
    mix: "learned", or a fixed rule on the round's predictions: "similar" (Sim-pFL), "topk"
        (TopK-pFL, the k most similar).
    k: how many clients teach each client, itself included, with mix = topk.
    peers: how many others teach a client, those of the nearest predictions when it first speaks; 0:
        all.
    """
    if peers and mix != "learned":
        raise BadInput(
            f"ktpfl.peers = {peers} is for a learned c, but ktpfl.mix = '{mix}': leave out one"
        )
    reading = Reading(T2_scale, literal_eq7, row_norm)
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "similar": knowledge.weigh_similar,
        "topk": partial(knowledge.weigh_top, k=k),
    }
    rule = rules.get(mix)

    def start(facts: Facts) -> Knowledge:
        name = {"similar": "sim-pfl", "topk": "topk-pfl"}.get(mix, "ktpfl")
        way = "use fedmd, or fewer clients" if rule else knowledge.PEERS
        return knowledge.start(name, facts, peers, draw * model.outputs, way)

    def hear(server: DistillationServer, replies: Replies) -> DistillationServer:
        ids, s, (c, data) = replies.ids, replies.upload, server.mix
        c = knowledge.follow(c, ids, rule(s)) if rule else knowledge.fill(c, ids, [s])
        return server._replace(mix=Knowledge(c, data), ids=ids, said=s)

    def teach(server: DistillationServer, i: int) -> Tensor:
        target: Tensor = server.mix.c.mix_among(server.said, i, server.ids)
        return target

    def learn(server: DistillationServer) -> DistillationServer:
        (c, data), ids = server.mix, server.ids
        part = data[ids][:, None] if reading.literal_eq7 else None
        steps = [
            partial(knowledge.prediction_gradient, s=s, lam=lam, data=part)
            for s in server.said.split(public_batch_size, dim=1)
        ]
        c = knowledge.descend_knowledge(c, ids, steps, lr_c, rho, reading.row_norm)
        return server._replace(mix=Knowledge(c, data))

    match = match_soft(model, temperature, lam, reading.T2_scale)
    public = PublicOptions(draw, public_batch_size, distil_epochs, distil_lr)
    answers = ServerRules(start, hear, teach, keep_server if rule else learn)
    method = build_distillation_method(model, train, match, public, answers)
    described = {**method.describes, **knowledge.COEFFICIENTS}
    return method._replace(admit=knowledge.admit, notes=knowledge.describe, describes=described)


sim_pfl = variant(
    ktpfl,
    "sim_pfl",
    "KT-pFL that mixes by the cosine similarity of predictions (the authors' code: temperature 1).",
    when="as ktpfl with fixed weights by similarity",
    mix="similar",
    without=(*LEARNING_OPTIONS, "k"),
)
topk_pfl = variant(
    ktpfl,
    "topk_pfl",
    "KT-pFL by the equal mean of the `k` clients with the nearest predictions, itself included.",
    when="as ktpfl with the k most similar clients",
    mix="topk",
    without=LEARNING_OPTIONS,
)
