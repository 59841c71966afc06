"""FedAdam, FedYogi, FedAdagrad. Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar,
McMahan: Adaptive Federated Optimization. ICLR 2021, Algorithm 2. arXiv:2003.00295.

FedAvg whose server takes Delta = mean_i w_i - w for a gradient:
    m <- beta1 m + (1 - beta1) Delta,  w <- w + eta m / (sqrt(v) + tau)
where v follows Delta^2: its sum (FedAdagrad), its fading mean (FedAdam), or towards it by its sign
(FedYogi). eta is `server_lr`. m starts at 0 and v at tau^2, and no bias is corrected. The mean is
weighted as the run's `weighting` says; the paper's algorithm has equal weights.
"""

from collections.abc import Callable

from coterie.core import server_optimizers
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.options import BelowOne, Positive
from coterie.core.server_optimizers import ServerOptimizer
from coterie.methods.declare import B, method
from coterie.methods.fedavg import fedavg
from coterie.methods.server_optimizer import optimize_server

TWO = {"server_optimizer": "it is FedAvg with a server optimizer of its own"}


def optimizer_method(when: str) -> Callable[[B], B]:
    """`method` of those here."""
    return method(when=when, refuses=TWO, uploads="mean", rows="gradients")


def build_optimized(model: Model, train: Train, optimizer: ServerOptimizer, name: str) -> Method:
    """FedAvg with a server optimizer."""
    base = fedavg(model, train._replace(server_lr=0.0))
    built = optimize_server(base, optimizer, train.server_lr, name)
    assert isinstance(built, Method)
    return built


@optimizer_method(when="one model for all, where gradients of layers differ in size")
def fedadam(
    model: Model, train: Train, beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3
) -> Method:
    """FedAvg whose server takes Adam's steps.

    beta1, beta2: how slowly m and v fade.
    tau: the larger, the less steps adapt to v.
    """
    return build_optimized(model, train, server_optimizers.adam(beta1, beta2, tau), "fedadam")


@optimizer_method(when="as fedadam, where changes grow rarely")
def fedyogi(
    model: Model, train: Train, beta1: BelowOne = 0.9, beta2: BelowOne = 0.99, tau: Positive = 1e-3
) -> Method:
    """FedAvg whose server takes Yogi's steps.

    beta1, beta2: how slowly m and v move.
    tau: the larger, the less steps adapt to v.
    """
    return build_optimized(model, train, server_optimizers.yogi(beta1, beta2, tau), "fedyogi")


@optimizer_method(when="as fedadam, where features are rare, as words are")
def fedadagrad(model: Model, train: Train, beta1: BelowOne = 0.0, tau: Positive = 1e-3) -> Method:
    """FedAvg whose server takes Adagrad's steps.

    beta1: how slowly m fades.
    tau: the larger, the less steps adapt to v.
    """
    return build_optimized(model, train, server_optimizers.adagrad(beta1, tau), "fedadagrad")
