"""FedCP. Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for
Personalized Federated Learning via Conditional Policy. KDD 2023, Algorithm 1. arXiv:2307.01217.

Of a row's features z one part is for a client's own head p_i, the rest for the common head g:
    out(x) = p_i(r * z) + g((1 - r) * z),   (r, 1 - r) = softmax(P(z * v_i)), by feature,
    min_{body, p_i, P} f_i(out) + lam MMD^2(z, z_received),   v_i = sum_k p_ik / |sum_k p_ik|,
P a common policy network (a dense layer, normalized, ReLU), p_ik the rows of p_i before the round.
g, as it was received, stays; body, p_i and P are averaged, and the mean of all p_i is the next g. A
client uses the received body, g and P with its last p_i. Interpretations: shares by softmax (the
authors' code draws them from Gumbel's, at use too); clients send p_i (in that code its mean with g,
so that g moves half as far); z_received is of the received body as it is used; MMD^2 sums four
Gaussian kernels; p_i starts at the first g.
"""

from torch import Tensor

from coterie.core.method import Batch, Facts, Method, Newcomer, Pass, Replies, Train
from coterie.core.model import Model, descend
from coterie.core.options import NonNegative
from coterie.core.point import Leaves, split
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.policy import CPCarry, CPServer, PolicySplit, measure_discrepancy
from coterie.networks.feature_heads import split_features


@method(when="some of what a row shows is common, some a client's own", uploads="mean")
def fedcp(model: Model, train: Train, lam: NonNegative = 1.0, head: Head = 1) -> Method:
    """Two heads, own and common, and a policy that shares a row's features between them.

    lam: weight of the distance of features to those of the received body; tune it (the authors
        have 5 for a CNN on MNIST).
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    cut = Split(model, head, "fedcp", linear=True)
    parts = PolicySplit(cut)

    def init(rng: Rng, facts: Facts) -> CPServer:
        return CPServer(model.init(rng), parts.start_policy(int(rng.integers(2**63))))

    def step(c: CPCarry, batch: Batch) -> CPCarry:
        received = cut.features(c.sent.w, batch)

        def objective(params: Leaves, z: Tensor, policy: Leaves) -> Tensor:
            mine, _ = split_features(policy, c.context, z)
            loss = model.data_loss(parts.add_heads(params, c.sent.w.params, mine, z, batch), batch)
            return loss + lam * measure_discrepancy(z, received, batch) if lam else loss

        gradient, of_policy = cut.gradients_of(objective, c.go.w, batch, c.policy.w)
        go, policy = (
            descend(c.go, gradient, train, batch),
            descend(c.policy, of_policy, train, batch),
        )
        return c._replace(go=go, policy=policy)

    def receive(server: CPServer, replies: Replies, rng: Rng) -> CPServer:
        return CPServer(*replies.average(replies.upload, train.weights(replies)))

    base = fedavg(model, train)
    trip = base.round[0]._replace(
        send=lambda server, i, rng: server,
        start=lambda own, sent: parts.open_round(own, sent, train),
        passes=(Pass(step, train.plan()),),
        finish=lambda c, own, sent: (
            split(c.go.w, cut.inside)[0],
            CPServer(c.go.w, c.policy.w),
        ),
        receive=receive,
    )
    return base._replace(
        init=init,
        join=lambda sent, rng: split(sent.w, cut.inside)[0],
        round=(trip,),
        personal=parts.put_together,
        views={"global": lambda own, sent: sent.w},
        model_of={"personal": parts.whole},
        newcomer=Newcomer("trains a head of its own beside the received one"),
    )
