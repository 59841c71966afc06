"""Self-FL's two-level Gaussian: clients observe values around means drawn around a common one.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang, "Self-Aware Personalized Federated Learning",
NeurIPS 2022.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.options import NonNegative, Number, PositiveInt, Range
from coterie.core.rng import stream
from coterie.data.dataset import Dataset, Source


def gaussian(
    folder: Path,
    num_clients: Annotated[int, Range(1, 100_000)] = 20,
    theta0: Number = 1.6,
    case: Annotated[int, Range(1, 2)] = 1,
    s0sq: NonNegative | None = None,
    sizes: Sequence[PositiveInt] | None = None,
    seed: int = 0,
) -> Dataset:
    """Self-FL's two-level Gaussian: observations around each client's own mean, kept in `truth`.

    theta_m ~ N(theta_0, s0^2), and client m observes N_m values of variance 0.1 around theta_m.

    num_clients: number of clients.
    theta0: theta_0, the mean of the clients' means.
    case: 1 has close clients (s0^2 = .001, N_m ~ U{10..20}), 2 far ones (s0^2 = 1, N_m ~
        U{10..200}).
    s0sq: s0^2 instead of the case's.
    sizes: N_m of every client instead of the case's.
    """
    if case not in (1, 2):
        raise BadInput(
            f"gaussian: case = {case!r}, but there are case 1 (close clients) and case 2 (far ones)"
        )
    if num_clients < 1 or (s0sq is not None and s0sq < 0):
        raise BadInput(
            f"gaussian: num_clients = {num_clients}, s0sq = {s0sq}: "
            "give at least 1 client and s0sq >= 0"
        )
    if sizes is not None and (len(sizes) != num_clients or min(sizes) < 1):
        raise BadInput(
            f"gaussian: sizes = {list(sizes)}, "
            f"but {num_clients} clients need {num_clients} sizes of 1 or more"
        )
    spread, largest = (0.001, 20) if case == 1 else (1.0, 200)
    spread = spread if s0sq is None else s0sq
    truth, observed = np.empty((num_clients, 1)), []
    for m in range(num_clients):
        rng = stream(seed, "gaussian", m)
        drawn_size = int(rng.integers(10, largest, endpoint=True))
        truth[m] = rng.normal(theta0, np.sqrt(spread))
        size = drawn_size if sizes is None else sizes[m]
        observed.append(rng.normal(truth[m], np.sqrt(0.1), size).astype(np.float32))
    z = np.concatenate(observed)
    users = np.repeat(np.arange(num_clients), [len(part) for part in observed])
    return Dataset(
        name="gaussian",
        x=z[:, None],
        y=z.copy(),
        classes=0,
        train=np.ones(len(z), bool),
        users=users,
        truth=truth,
    )


GAUSSIAN = Source(gaussian, natural=True, network="mean")
