"""FedAvgM. Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification. 2019. arXiv:1909.06335.

FedAvg whose server has momentum; with Delta = mean_i w_i - w,
    m <- momentum m + Delta,   w <- w + eta m.
eta is `server_lr`, and m starts at 0. momentum = 0 is FedAvg.
"""

from coterie.core import server_optimizers
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.options import BelowOne
from coterie.methods.fedopt import build_optimized, optimizer_method


@optimizer_method(when="one model for all, where the sampled clients of each round pull apart")
def fedavgm(model: Model, train: Train, server_momentum: BelowOne = 0.9) -> Method:
    """FedAvg whose server has momentum.

    server_momentum: how slowly the changes of earlier rounds fade.
    """
    return build_optimized(model, train, server_optimizers.sgd(server_momentum), "fedavgm")
