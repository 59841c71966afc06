"""FedRep. Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
Personalized Federated Learning. ICML 2021, Algorithm 1.

min_body sum_i (n_i / n) min_{head_i} f_i(body, head_i): FedPer whose clients first descend on their
head with the received body held, then on the body with the new head held.
"""

from coterie.core.method import Method, Pass, Train
from coterie.core.model import Model, sgd
from coterie.core.options import NonNegativeInt
from coterie.methods.declare import method
from coterie.methods.fedper import find_own_layers, keep_layers_local, restrict_step


@method(when="as fedper, with more own steps on the last layers", uploads="mean", rows="gradients")
def fedrep(
    model: Model, train: Train, head: NonNegativeInt = 1, head_epochs: NonNegativeInt = 10
) -> Method:
    """A common body, averaged; the last `head` layers stay home and are fitted for `head_epochs`
    epochs before each body step.

    The body then takes the steps or epochs of `train`.
    """
    inside = find_own_layers(model, head, "fedrep")
    _, step = sgd(model, train)

    fit_head = Pass(restrict_step(step, inside, train), train.plan(epochs=head_epochs, steps=0))
    fit_body = Pass(restrict_step(step, lambda name: not inside(name), train), train.plan())
    base = keep_layers_local(model, train, inside)
    trip = base.round[0]._replace(passes=(fit_head, fit_body) if head_epochs else (fit_body,))
    return base._replace(round=(trip,))
