"""LG-FedAvg. Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act
Globally: Federated Learning with Local and Global Representations. 2020 (arXiv 2001.01523),
Algorithm 1.

min_{body_1..N, head} sum_i (n_i / n) f_i(body_i, head): FedPer turned round. Each client learns a
representation of its own, the last layers are averaged. Without the paper's auxiliary losses on the
representation, as in its supervised experiments.
"""

from coterie.core.errors import BadInput
from coterie.core.method import Method, Train
from coterie.core.model import Model, layer_of
from coterie.core.options import PositiveInt
from coterie.methods.declare import method
from coterie.methods.fedper import keep_layers_local


@method(
    when="inputs differ between clients: the first layers stay at home",
    uploads="mean",
    rows="gradients",
)
def lgfedavg(model: Model, train: Train, head: PositiveInt = 1) -> Method:
    """FedAvg of the last `head` layers; the layers before them stay with their client."""
    there = len({layer_of(name) for name in model.shapes})
    if there == 1:
        raise BadInput(
            f"lgfedavg keeps the first layers at home, and {model.name} has only one layer: "
            "give another --model, or use fedavg or local"
        )
    if head > there:
        raise BadInput(
            f"lgfedavg.head = {head}, but {model.name} has {there} layers with parameters: give 1 "
            f"to {there}"
        )
    shared = model.head(head)
    return keep_layers_local(model, train, lambda name: not shared(name))
