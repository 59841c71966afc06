"""FedAvg with local fine-tuning: FedAvg's model, then every client trains a copy on its own data
before using it. Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage: Federated Evaluation of
On-device Personalization. 2019, arXiv:1910.10252.

The global model's training is untouched; the copy is thrown away and made anew at every evaluation.
"""

from coterie.core.method import Method, Newcomer, Train, keep_server
from coterie.core.model import Model
from coterie.core.options import NonNegativeInt
from coterie.methods.declare import method
from coterie.methods.fedavg import fedavg


def add_finetuning(base: Method, train: Train, epochs: int) -> Method:
    """The method whose clients train a copy of what they receive for some epochs before using
    it."""
    trip = base.round[0]
    tune = trip._replace(
        passes=(trip.passes[0]._replace(plan=train.plan(epochs=epochs, steps=0)),),
        finish=lambda c, state, w: (c.w, ()),
        receive=keep_server,
    )
    return base._replace(
        personalize=tune,
        personal=lambda own, w: own,
        views={"global": lambda state, w: w},
        newcomer=Newcomer("fine-tunes the received model, as every client does", rounds=0),
    )


@method(
    when="first, as the plainest personalization: FedAvg, then own epochs",
    uploads="mean",
    rows="gradients",
)
def finetune(model: Model, train: Train, tune_epochs: NonNegativeInt = 5) -> Method:
    """FedAvg whose clients fine-tune the global model before use.

    tune_epochs: epochs of fine-tuning before use.
    """
    return add_finetuning(fedavg(model, train), train, tune_epochs)
