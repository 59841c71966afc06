"""Data drawn from known laws: FedProx's Synthetic(alpha, beta) and Self-FL's two-level Gaussian.

Synthetic(alpha, beta): Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020. Two-level Gaussian: Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang, "Self-Aware
Personalized Federated Learning", NeurIPS 2022.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.core.errors import BadInput, nearest
from coterie.core.rng import stream

FEATURES, CLASSES = 60, 10
SCALE = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations: the variances are j^-1.2
TIMES = {"fedprox": 1, "pfedme": 5}  # n_i = (floor(LogNormal(4, 2)) + 50) * times


class Drawn(NamedTuple):
    """Rows of all clients, one client after another."""

    x: np.ndarray  # [n, features] float32
    y: np.ndarray  # [n] int64 labels, or float32 observations
    users: np.ndarray  # [n] int64
    truth: np.ndarray | None = None  # [clients, 1], the mean each client's observations were drawn around


def synthetic(alpha: float, beta: float, clients: int, seed: int, sizes: str, draws: str) -> Drawn:
    """Each client has its own labelling rule W_i, b_i ~ N(u_i, 1) and its own input mean v_i ~ N(B_i, 1).

    u_i ~ N(0, alpha) and B_i ~ N(0, beta); alpha and beta are standard deviations, as in the published code.
    `draws="legacy"` repeats the published order of draws from one numpy RandomState; `draws="streams"` gives
    every client a stream of its own, so that client i is the same however many clients there are.
    """
    if clients < 1 or alpha < 0 or beta < 0:
        raise BadInput(
            f"synthetic: clients = {clients}, alpha = {alpha}, beta = {beta}, but clients must be at least 1 "
            "and alpha and beta not negative"
        )
    for word, value, valid in (("sizes", sizes, TIMES), ("draws", draws, DRAWS)):
        if value not in valid:
            raise BadInput(f"synthetic: {word} = '{value}' is unknown{nearest(value, valid)}")
    return DRAWS[draws](alpha, beta, clients, seed, TIMES[sizes])


def legacy(alpha: float, beta: float, clients: int, seed: int, times: int) -> Drawn:
    """All sizes, all u, all B, every v_i, then client by client W, b and x, from one RandomState."""
    rng = np.random.RandomState(seed)
    n = (rng.lognormal(4, 2, clients).astype(int) + 50) * times
    u, mean = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    v = [rng.normal(mean[i], 1, FEATURES) for i in range(clients)]
    drawn = room(n)
    for i, rows in enumerate(spans(n)):
        w, b = rng.normal(u[i], 1, (FEATURES, CLASSES)), rng.normal(u[i], 1, CLASSES)
        x = rng.normal(size=(n[i], FEATURES))
        x *= SCALE
        x += v[i]
        drawn.x[rows] = x
        drawn.y[rows] = (drawn.x[rows] @ w + b).argmax(1)
    return drawn


def streams(alpha: float, beta: float, clients: int, seed: int, times: int) -> Drawn:
    """Client i from its own stream, straight into the one array that holds the rows of all clients."""
    own = [stream(seed, "synthetic", i) for i in range(clients)]
    n = np.array([(int(rng.lognormal(4, 2)) + 50) * times for rng in own])
    drawn = room(n)
    scale = SCALE.astype(np.float32)
    for rng, rows in zip(own, spans(n), strict=True):
        u, mean = rng.normal(0, alpha), rng.normal(0, beta)
        v = rng.normal(mean, 1, FEATURES).astype(np.float32)
        w = rng.normal(u, 1, (FEATURES, CLASSES)).astype(np.float32)
        b = rng.normal(u, 1, CLASSES).astype(np.float32)
        x = drawn.x[rows]
        rng.standard_normal(dtype=np.float32, out=x)
        x *= scale
        x += v
        drawn.y[rows] = (x @ w + b).argmax(1)
    return drawn


DRAWS = {"legacy": legacy, "streams": streams}


def room(n: np.ndarray) -> Drawn:
    """Empty rows for clients of the given sizes."""
    total = int(n.sum())
    users = np.repeat(np.arange(len(n)), n)
    return Drawn(np.empty((total, FEATURES), np.float32), np.empty(total, np.int64), users)


def spans(n: np.ndarray) -> list[slice]:
    """The rows of each client."""
    ends = np.cumsum(n)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, n, strict=True)]


def gaussian(clients: int, theta0: float, case: int, s0sq: float | None, sizes: Sequence[int] | None, seed: int) -> Drawn:
    """theta_m ~ N(theta_0, s0^2); client m observes N_m values of variance 0.1 around theta_m.

    Case 1 has close clients (s0^2 = .001, N_m ~ U{10..20}), case 2 far ones (s0^2 = 1, N_m ~ U{10..200});
    `s0sq` and `sizes` replace the case's values.
    """
    if case not in (1, 2):
        raise BadInput(f"gaussian: case = {case!r}, but there are case 1 (close clients) and case 2 (far clients)")
    if clients < 1 or (s0sq is not None and s0sq < 0):
        raise BadInput(f"gaussian: clients = {clients}, s0sq = {s0sq}, but need at least 1 client and s0sq >= 0")
    if sizes is not None and (len(sizes) != clients or min(sizes) < 1):
        raise BadInput(f"gaussian: sizes = {list(sizes)}, but {clients} clients need {clients} sizes of 1 or more")
    spread, largest = (0.001, 20) if case == 1 else (1.0, 200)
    spread = spread if s0sq is None else s0sq
    truth, observed = np.empty((clients, 1)), []
    for m in range(clients):
        rng = stream(seed, "gaussian", m)
        drawn_size = int(rng.integers(10, largest, endpoint=True))
        truth[m] = rng.normal(theta0, np.sqrt(spread))
        size = drawn_size if sizes is None else sizes[m]
        observed.append(rng.normal(truth[m], np.sqrt(0.1), size).astype(np.float32))
    z = np.concatenate(observed)
    users = np.repeat(np.arange(clients), [len(part) for part in observed])
    return Drawn(z[:, None], z.copy(), users, truth)
