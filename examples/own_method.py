"""A method of one's own in one file: FedAvg whose clients keep their model half-way between
FedAvg's and their own.

Run it: python examples/own_method.py
"""

import coterie
from coterie.core.method import Method, Train
from coterie.core.model import Model
from coterie.core.point import blend
from coterie.methods.fedavg import fedavg


def halfway(model: Model, train: Train, share: float = 0.5) -> Method:
    """Each client uses (1 - share) of the global model and `share` of the last model it trained."""
    base = fedavg(model, train)
    trip = base.round[0]._replace(
        finish=lambda c, own, w: (c.w, c.w)
    )  # keep what was trained, and upload it
    return base._replace(
        join=lambda w, rng: w,
        round=(trip,),
        personal=lambda own, w: blend(w, own, share),
        views={"global": lambda own, w: w},
    )


def main(rounds: int = 20, out: str | None = None) -> None:
    coterie.register(halfway)
    result = coterie.compare(
        ["fedavg", "halfway", "local"], dataset="digits", num_clients=20, rounds=rounds, out=out
    )
    for row in result.rows():
        print(
            f"{row.method:8} {100 * row.mean:.1f} % on average, worst client "
            f"{100 * row.worst:.1f} %"
        )


if __name__ == "__main__":
    main()
