"""GPFL. Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and
Personalized Feature Information for Personalized Federated Learning. ICCV 2023, Algorithm 1.
arXiv:2308.10279.

A valve V turns the features z of a row into common ones, which a common embedding C_y of its class
attracts, and personal ones for the client's head:
    min f_i(head_i(V(z, p_i))) + mean_x -log softmax_k(cos(V(z, g), C_k))_y
        + lam mean_x |V(z, g) - C_y'| + mu / 2 (|C|^2 + |V|^2),
    V(z, c) = relu(z (1 + a(c)) + b(c)),   g = mean_k C_k',   p_i = sum_k (n_ik / n_i) C_k',
C' the received embeddings, n_ik the client's rows of class k; a and b a dense layer, ReLU and
normalization each. Body, C and V are averaged, heads stay. A client uses head_i(V(z, p_i)) of what
it received. Interpretations: the distance is by rows (the authors' code has the norm of the batch);
g and p_i are of the received C (in that code of the client's last); heads start alike.
"""

import torch
from torch import Tensor

from coterie.core.method import Batch, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, begin, descend
from coterie.core.options import NonNegative
from coterie.core.point import Leaves, merge
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods import valve as gp
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.prototypes import EVERY_ROW, mark_classes
from coterie.networks.feature_heads import turn_features


@method(
    when="as fedper, and classes look alike at all clients", uploads="mean", tasks=gp.BY_EMBEDDING
)
def gpfl(
    model: Model, train: Train, lam: NonNegative = 0.01, mu: NonNegative = 0.0, head: Head = 1
) -> Method:
    """Own heads on a common body, whose features common embeddings of the classes attract.

    lam: weight of the distance of common features to their class's embedding.
    mu: weight decay of the embeddings and of the valve; tune it (the authors have 0.1 for a CNN).
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    cut, held = Split(model, head, "gpfl"), train._replace(weight_decay=mu)
    parts = gp.ValveSplit(cut)
    kinds = parts.classes  # a name, since in a closure Ray takes .classes for torch.classes

    def start(own: gp.GPState, sent: gp.GPServer) -> gp.GPCarry:
        w, none = merge(own.head, sent.body, model.shapes), torch.zeros(kinds)
        return gp.GPCarry(begin(w, train), begin(sent.common, held), sent.common, none)

    def count(c: gp.GPCarry, batch: Batch) -> gp.GPCarry:
        return c._replace(rows=c.rows + mark_classes(batch, kinds).sum(0))

    def step(c: gp.GPCarry, batch: Batch) -> gp.GPCarry:
        known = c.sent.params[gp.EMBEDDING]

        def objective(params: Leaves, z: Tensor, common: Leaves) -> Tensor:
            mine = turn_features(common, gp.mix_embeddings(c.shares, known), z)
            other = turn_features(common, known.mean(0), z)
            loss = model.data_loss(cut.head(params, mine, batch), batch)
            loss = loss + gp.compare_angles(other, common[gp.EMBEDDING], batch)
            return loss + lam * gp.measure_gap(other, c.sent.params, batch)

        g, of_common = cut.gradients_of(objective, c.go.w, batch, c.common.w)
        common = descend(c.common, of_common, held, batch)
        return c._replace(go=descend(c.go, g, train, batch), common=common)

    def receive(server: gp.GPServer, replies: Replies, rng: Rng) -> gp.GPServer:
        body, common = replies.average(replies.upload, train.weights(replies))
        return server._replace(body=body, common=common)

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server,
        start=start,
        passes=(Pass(count, EVERY_ROW), Pass(step, train.plan())),
        finish=lambda c, own, sent: parts.close_round(c),
        receive=receive,
    )
    return base._replace(
        init=lambda rng, facts: parts.start_server(rng),
        join=lambda sent, rng: parts.start_client(sent),
        round=(trip,),
        personal=parts.put_together,
        model_of={"personal": parts.whole},
        newcomer=Newcomer("trains a head of its own on the received body and valve"),
    )
