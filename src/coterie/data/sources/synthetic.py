"""FedProx's Synthetic(alpha, beta): every client has a labelling rule of its own.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.core.errors import BadInput, nearest
from coterie.core.memory import check_memory
from coterie.core.rng import streams as each_stream
from coterie.core.values import Count, NonNegative, Whole
from coterie.data.dataset import Dataset, Source
from coterie.data.lazy import Maker

FEATURES, CLASSES = 60, 10
SCALE = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations: the variances are j^-1.2
STORED = 2**28  # bytes of inputs that are drawn at once
TIMES = {"fedprox": 1, "pfedme": 5}  # n_i = (floor(LogNormal(4, 2)) + 50) * times


class Drawn(NamedTuple):
    """Rows of all clients, one client after another."""

    x: np.ndarray  # [n, features] float32
    y: np.ndarray  # [n] int64 labels
    users: np.ndarray  # [n] int64


def synthetic(
    folder: Path,
    alpha: NonNegative = 0.5,
    beta: NonNegative = 0.5,
    clients: Count = 100,
    seed: int = 0,
    sizes: str = "pfedme",
    draws: str = "legacy",
    rows_each: Whole = 0,
) -> Dataset:
    """FedProx's Synthetic(alpha, beta): 60 features, 10 classes, a labelling rule per client.

    Client i has its own rule W_i, b_i ~ N(u_i, 1) and its own input mean v_i ~ N(B_i, 1), where
    u_i ~ N(0, alpha) and B_i ~ N(0, beta); alpha and beta are standard deviations, as in the
    published code. `draws="legacy"` repeats the published order of draws from one numpy
    RandomState; `draws="streams"` gives every client a stream of its own, so that client i is the
    same however many clients there are, and many clients are drawn when they are needed. Every
    client has `rows_each` rows where that is not 0.
    """
    _check(alpha, beta, clients, sizes, draws)
    if draws == "legacy":
        got = legacy(alpha, beta, clients, seed, TIMES[sizes], rows_each)
    else:
        got = streams(alpha, beta, _sizes(clients, seed, sizes, rows_each), seed)
    return Dataset(
        name="synthetic",
        x=got.x,
        y=got.y,
        classes=CLASSES,
        train=np.ones(len(got.x), bool),
        users=got.users,
    )


def lazily(
    alpha: float = 0.5,
    beta: float = 0.5,
    clients: int = 100,
    seed: int = 0,
    sizes: str = "pfedme",
    draws: str = "legacy",
    rows_each: int = 0,
) -> Maker | None:
    """The same rows, made when they are asked for; None where they are few, or cannot be drawn
    client by client.
    """
    _check(alpha, beta, clients, sizes, draws)
    if draws == "legacy":
        return None
    n = _sizes(clients, seed, sizes, rows_each)
    if n.sum() * FEATURES * 4 <= STORED:
        return None

    def make(some: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        mine = n[np.asarray(some, dtype=np.int64)]
        drawn = empty(mine)
        draw(drawn, alpha, beta, mine, seed, some)
        return drawn.x, drawn.y

    words = (alpha, beta, clients, seed, TIMES[sizes], rows_each)
    return Maker(n, make, CLASSES, digest=f"synthetic streams {words}")


def _check(alpha: float, beta: float, clients: int, sizes: str, draws: str) -> None:
    """Refuse options that say nothing."""
    if clients < 1 or alpha < 0 or beta < 0:
        raise BadInput(
            f"synthetic: clients = {clients}, alpha = {alpha}, beta = {beta}, "
            "but clients must be at least 1 and alpha and beta not negative"
        )
    for word, value, valid in (("sizes", sizes, TIMES), ("draws", draws, DRAWS)):
        if value not in valid:
            raise BadInput(f"synthetic: {word} = '{value}' is unknown{nearest(value, valid)}")


def _sizes(clients: int, seed: int, sizes: str, rows_each: int) -> np.ndarray:
    """The rows of each client that has a stream of its own."""
    if rows_each:
        return np.full(clients, rows_each)
    return own_sizes(clients, seed, TIMES[sizes])


def legacy(alpha: float, beta: float, clients: int, seed: int, times: int, rows_each: int) -> Drawn:
    """All sizes, u, B and v_i, then W, b and x client by client, from one RandomState."""
    rng = np.random.RandomState(seed)
    n = (rng.lognormal(4, 2, clients).astype(int) + 50) * times
    n = np.full(clients, rows_each) if rows_each else n
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


def streams(alpha: float, beta: float, n: np.ndarray, seed: int) -> Drawn:
    """Client i from its own stream, straight into the one array that holds all rows."""
    drawn = room(n)
    draw(drawn, alpha, beta, n, seed, range(len(n)))
    return drawn


def draw(
    drawn: Drawn, alpha: float, beta: float, n: np.ndarray, seed: int, clients: Sequence[int]
) -> None:
    """Fill the rows of some clients, one client after another."""
    scale = SCALE.astype(np.float32)
    for rng, rows in zip(each_stream(seed, "synthetic", clients), spans(n), strict=True):
        rng.lognormal(4, 2)  # of its size
        u, mean = rng.normal(0, alpha), rng.normal(0, beta)
        v = rng.normal(mean, 1, FEATURES).astype(np.float32)
        w = rng.normal(u, 1, (FEATURES, CLASSES)).astype(np.float32)
        b = rng.normal(u, 1, CLASSES).astype(np.float32)
        x = drawn.x[rows]
        rng.standard_normal(dtype=np.float32, out=x)
        x *= scale
        x += v
        drawn.y[rows] = (x @ w + b).argmax(1)


def own_sizes(clients: int, seed: int, times: int) -> np.ndarray:
    """The rows of each client, by its own stream."""
    sizes = (rng.lognormal(4, 2) for rng in each_stream(seed, "synthetic", range(clients)))
    return (np.fromiter(sizes, float, clients).astype(np.int64) + 50) * times


DRAWS = ("legacy", "streams")


def room(n: np.ndarray) -> Drawn:
    """Empty rows for clients of the given sizes."""
    total = int(n.sum())
    check_memory(
        total * FEATURES * 4 * 2,  # once as drawn, once as dealt
        f"{total:,} rows of {len(n):,} synthetic clients",
        "lower --clients, or use --draws streams, which makes rows when they are needed",
    )
    return empty(n)


def empty(n: np.ndarray) -> Drawn:
    """The same, whatever the memory."""
    total = int(n.sum())
    users = np.repeat(np.arange(len(n)), n)
    return Drawn(np.empty((total, FEATURES), np.float32), np.empty(total, np.int64), users)


def spans(n: np.ndarray) -> list[slice]:
    """The rows of each client."""
    ends = np.cumsum(n)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, n, strict=True)]


SYNTHETIC = Source(synthetic, natural=True, network="mlr", cut="order", lazily=lazily)
