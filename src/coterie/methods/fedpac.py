"""FedPAC. Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier
Collaboration. ICLR 2023, Algorithm 1. arXiv:2306.11867.

A client fits its head with the received body fixed, then the body with the new head fixed:
    min_body f_i(body, head_i) + lam mean_x |z - C_y|^2 / d,   C_j = sum_i n_ij C_ij / sum_i n_ij,
C_ij the mean of the d features z of its n_ij rows of class j. Bodies are averaged, heads combined:
    head_i <- sum_k a_k head_k,   shares a of least sum_k a_k^2 v_k + |h_i - sum_k a_k h_k|^2,
    h_k = (n_kj / n_k mean of z in class j)_j,   v_k = (mean |z|^2 - |h_k|^2) / n_k,
both under the received body. Used is the averaged body with the combined head (the authors' code
measures after one more round of training). The server keeps all heads, as they were combined last.
Interpretations of that code: the distance is by its mean over features, shares below 0.001 are
dropped.
"""

from coterie.core.method import Batch, Exchange, Facts, Method, Newcomer, Pass, Train
from coterie.core.method import return_nothing as join_without_state
from coterie.core.model import Model
from coterie.core.options import NonNegative, NonNegativeInt
from coterie.core.point import Point, Vector, merge, pick, split, stack
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods import combination as pac
from coterie.methods.declare import method
from coterie.methods.fedper import restrict_step
from coterie.methods.prototypes import BY_CLASS, hold_features, no_prototypes


@method(
    when="classes differ between clients, some of which are alike", tasks=BY_CLASS, uploads="models"
)
def fedpac(
    model: Model,
    train: Train,
    lam: NonNegative = 1.0,
    head_epochs: NonNegativeInt = 1,
    lr_head: NonNegative = 0.0,
    head: Head = 1,
) -> Method:
    """A common body regularized towards common class means, and heads combined per client.

    lam: weight of the distance to the class means.
    head_epochs: epochs on the head before the body trains.
    lr_head: learning rate of the head; 0: that of training.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    cut = Split(model, head, "fedpac")
    fit_head = restrict_step(model, train._replace(lr=lr_head or train.lr), cut.inside)
    own_epochs = train.plan(epochs=head_epochs, steps=0)

    def align(c: pac.PACCarry, batch: Batch) -> pac.PACCarry:
        def gradient(w: Point, batch: Batch) -> Vector:
            return hold_features(cut, w, batch, c.shared, lam)

        fit_body = restrict_step(model, train, lambda name: not cut.inside(name), gradient)
        return c._replace(go=fit_body(c.go, batch))

    def init(rng: Rng, facts: Facts) -> pac.PACServer:
        own, body = split(model.init(rng), cut.inside)
        return pac.PACServer(body, stack([own] * facts.clients), no_prototypes(cut))

    trip = Exchange(
        send=lambda server, i, rng: server._replace(head=pick(server.head, i)),
        start=lambda state, sent: pac.open_round(cut, train, sent),
        passes=(
            pac.look_before(cut),
            Pass(lambda c, batch: c._replace(go=fit_head(c.go, batch)), own_epochs),
            Pass(align, train.plan()),
            pac.look_after(cut),
        ),
        finish=lambda c, state, sent: (state, pac.close_round(cut, c)),
        receive=lambda server, replies, rng: pac.combine(server, replies, train),
    )
    alone = trip._replace(
        passes=trip.passes[1:2],
        receive=lambda server, replies, rng: pac.keep_heads(server, replies),
    )
    return Method(
        init=init,
        join=join_without_state,
        round=(trip,),
        personal=lambda state, sent: merge(sent.head, sent.body, model.shapes),
        admit=pac.admit_newcomer,
        newcomer=Newcomer("fits a head from the mean of all heads, the body held", round=(alone,)),
    )
