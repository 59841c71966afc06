"""FedBABU. Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image
Classification. ICLR 2022, Algorithm 1. arXiv:2106.06042.

min_body sum_i (n_i / n) f_i(body, head_0): FedAvg of the body alone; the random head_0 is the same
for all and never trains. Before use a client fine-tunes a copy for `tune_epochs` epochs.
Interpretation: the abstract fine-tunes the head, which is `tune = head`; the paper compares it with
`body` and with `full`, which the code of PFLlib does.
"""

from typing import Literal

from coterie.core.method import Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Model
from coterie.core.options import NonNegativeInt
from coterie.core.split import Head, find_head
from coterie.methods.declare import method
from coterie.methods.fedper import keep_layers_local, restrict_step


@method(
    when="classes differ between clients, and newcomers shall adapt in a few epochs",
    uploads="mean",
    rows="gradients",
)
def fedbabu(
    model: Model,
    train: Train,
    head: Head = 1,
    tune_epochs: NonNegativeInt = 5,
    tune: Literal["head", "body", "full"] = "head",
) -> Method:
    """FedAvg of the body under a head that never trains; clients fine-tune before use.

    head: the head: how many of the last layers, or the name of a part of the network.
    tune_epochs: epochs of fine-tuning before use.
    tune: the part that is fine-tuned.
    """
    inside = find_head(model, head, "fedbabu", least=1)
    moves = {"head": inside, "body": lambda name: not inside(name), "full": lambda name: True}
    base = keep_layers_local(model, train, inside)
    fit_body = Pass(restrict_step(model, train, moves["body"]), train.plan())
    trip = base.round[0]._replace(passes=(fit_body,))
    fit = Pass(restrict_step(model, train, moves[tune]), train.plan(epochs=tune_epochs, steps=0))
    use = trip._replace(
        passes=(fit,),
        finish=lambda c, head_0, shared: (c.w, ()),
        receive=keep_server,
    )
    return base._replace(
        round=(trip,),
        personalize=use,
        personal=lambda tuned, shared: tuned,
        views={"global": base.personal},
        newcomer=Newcomer("fine-tunes the received body and head, as every client does", rounds=0),
    )
