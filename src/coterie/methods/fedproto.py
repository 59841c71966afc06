"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across
Heterogeneous Clients. AAAI 2022, Algorithm 1. arXiv:2105.00243.

Every client trains a network of its own and sends the mean features of each of its classes:
    min_w f_i(w) + lam mean_x |z(x) - C_y|^2 / d,   C_j = sum_i n_ij C_ij / sum_i n_ij,
with z the d features of a row, C_ij their mean over the n_ij rows of class j. Networks may differ
as long as d is the same. Predicted is the class of the nearest C_j (`predict = prototype`), or what
the client's own head says. Interpretations: the distance is a row's, by its mean over the features,
as in the authors' code; C_ij is taken with the trained network, where that code sums features while
it trains. The paper's further 1/|N_j| before the sum would shrink prototypes, and is left out.
`weighting = equal` is the authors' code: the plain mean over clients that have the class. A class
that nobody sent keeps its C_j.
"""

from typing import Literal

from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.options import NonNegative
from coterie.core.rng import Rng
from coterie.core.split import Head
from coterie.methods.declare import method
from coterie.methods.prototypes import (
    BY_CLASS,
    ClassSums,
    ProtoServer,
    ServerRules,
    average_prototypes,
    build_prototype_method,
)


@method(when="networks differ, without public rows, and little may travel", tasks=BY_CLASS)
def fedproto(
    model: Model,
    train: Train,
    lam: NonNegative = 1.0,
    head: Head = 1,
    predict: Literal["prototype", "head"] = "prototype",
) -> Method:
    """Networks of the clients' own, regularized towards common mean features of each class.

    lam: weight of the distance to the prototypes.
    head: the head: how many of the last layers, or the name of a part of the network.
    predict: by the nearest prototype, or by the client's own head.
    """

    def renew(server: ProtoServer, sent: ClassSums, rng: Rng) -> ProtoServer:
        weights = sent.rows if train.weighting == "size" else (sent.rows > 0).to(sent.rows)
        return server._replace(shared=average_prototypes(server.shared, sent.features, weights))

    rules = ServerRules(renew)
    return build_prototype_method(model, train, lam, head, predict, "fedproto", rules)
