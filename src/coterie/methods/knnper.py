"""kNN-Per. Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local
Memorization. ICML 2022, Algorithm 1. arXiv:2111.09360.

FedAvg's w for all; a client keeps the features and labels of its own training rows and asks those
nearest to a row x, k of them by the distance of features, what it is:
    p_i(y | x) = lam_i p_near(y | x) + (1 - lam_i) p_w(y | x),
    p_near(y | x) ~ sum_{(x', y') near x, y' = y} exp(-|z(x) - z(x')| / reach).
z is what the head of w is given; nothing of it is sent. lam_i is chosen among 0, 0.1, ..., 1 on
the client's validation rows. lam = 0 is FedAvg. Interpretations: the distance is the text's (the
authors' code has its square over the number of features); lam_i is chosen by loss, of equals the
smallest, and 0.5 without validation rows; a memory that is smaller than a client's rows has some
that are evenly spaced among them (the authors' code draws them).
"""

from typing import Annotated

from coterie.core.method import BatchPlan, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Model
from coterie.core.options import Positive, PositiveInt, Range
from coterie.core.split import Head, Split
from coterie.methods.components import BY_PROBABILITY
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg
from coterie.methods.memory import RowMemory
from coterie.methods.prototypes import EVERY_ROW
from coterie.networks.probabilities import Near


@method(
    when="clients see the same things and name them differently",
    uploads="mean",
    rows="gradients",
    tasks=BY_PROBABILITY,
)
def knnper(
    model: Model,
    train: Train,
    neighbours: PositiveInt = 10,
    lam: Annotated[float, Range(-1, 1)] = -1.0,
    reach: Positive = 1.0,
    memory: PositiveInt = 1000,
    head: Head = 1,
) -> Method:
    """FedAvg's model, blended with the labels of a client's own rows nearby.

    neighbours: k, rows that are asked.
    lam: their share; below 0: each client chooses it on its validation rows.
    reach: distance of features at which a row's vote has fallen to 1 / e.
    memory: most rows that a client remembers.
    head: the head: how many of the last layers, or the name of a part of the network.
    """
    store = RowMemory(Split(model, head, "knnper"), memory, Near(neighbours, reach), lam)
    remember = Pass(store.add, EVERY_ROW)
    choose = Pass(store.weigh, BatchPlan(part="validation", shuffle=False))
    base = fedavg(model, train)
    use = base.round[0]._replace(
        prepare=lambda state, w, rows: rows,
        start=store.start,
        passes=(remember, choose) if lam < 0 else (remember,),
        finish=lambda c, rows, w: (store.put_inside(c, rows), ()),
        receive=keep_server,
    )
    return base._replace(
        personalize=use,
        personal=lambda own, w: own,
        views={"global": lambda own, w: w},
        model_of={"personal": store.whole},
        newcomer=Newcomer("remembers its own rows, as every client does", rounds=0),
        needs=frozenset({"validation"} if lam < 0 else ()),
    )
