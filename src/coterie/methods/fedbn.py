"""FedBN. Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021, Algorithm 1. arXiv:2102.07623.

FedAvg of every layer but the BatchNorm ones, whose parameters and running statistics never leave
their client.
"""

from coterie.core.errors import BadInput
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.methods.declare import method
from coterie.methods.fedper import keep_layers_local


@method(when="inputs differ in look or scale, and the network has batch norm", uploads="mean")
def fedbn(model: Model, train: Train) -> Method:
    """FedAvg with BatchNorm layers kept at home."""
    norm = model.norms()
    if not any(norm(name) for name in model.shapes):
        raise BadInput(
            f"fedbn keeps BatchNorm layers at home, and {model.name} has none: give a model with "
            "BatchNorm, or use fedavg"
        )
    return keep_layers_local(model, train, norm)
