"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act
Globally: Federated Learning with Local and Global Representations. 2020 (arXiv:2001.01523),
Algorithm 1.

    min_{body_1..N, head} sum_i (n_i / n) f_i(body_i, head)

FedPer turned round. Each client learns a
representation of its own, the last layers are averaged. Without the paper's auxiliary losses on the
representation, as in its supervised experiments.
"""

from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.split import Head, find_head
from coterie.methods.declare import method
from coterie.methods.fedper import keep_layers_local


@method(
    when="inputs differ between clients: the first layers stay at home",
    uploads="mean",
    rows="gradients",
)
def lgfedavg(model: Model, train: Train, head: Head = 1) -> Method:
    """FedAvg of the head; the body stays with its client.

    head: the head, which is averaged: how many of the last layers, or the name of a part of the
        network.
    """
    shared = find_head(model, head, "lgfedavg", least=1, whole=True)
    return keep_layers_local(model, train, lambda name: not shared(name))
