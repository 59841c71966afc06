"""FedRep. Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
Personalized Federated Learning. ICML 2021, Algorithm 1. arXiv:2102.07078.

    min_body sum_i (n_i / n) min_{head_i} f_i(body, head_i)

FedPer whose clients first descend on their head with the received body fixed, then on the body with
the new head fixed.
"""

from coterie.core.method import Method, Pass, Train
from coterie.core.model import Model
from coterie.core.options import NonNegativeInt
from coterie.core.split import Head, find_head
from coterie.methods.declare import method
from coterie.methods.fedper import keep_layers_local, restrict_step


@method(when="as fedper, with more own steps on the last layers", uploads="mean", rows="gradients")
def fedrep(model: Model, train: Train, head: Head = 1, head_epochs: NonNegativeInt = 10) -> Method:
    """A common body, averaged; the head stays with its client and is fitted before each body step.

    The body then takes the steps or epochs of `train`.

    head: the head, which stays with its client: how many of the last layers, or the name of a part
        of the network.
    head_epochs: epochs on the head before each body step.
    """
    inside = find_head(model, head, "fedrep")
    fit_head = Pass(restrict_step(model, train, inside), train.plan(epochs=head_epochs, steps=0))
    fit_body = Pass(restrict_step(model, train, lambda name: not inside(name)), train.plan())
    base = keep_layers_local(model, train, inside)
    trip = base.round[0]._replace(passes=(fit_head, fit_body) if head_epochs else (fit_body,))
    return base._replace(round=(trip,))
