"""FedProx's Synthetic(alpha, beta): every client has a labelling rule of its own.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.core.errors import BadInput, suggest_name
from coterie.core.memory import check_memory
from coterie.core.options import NonNegative, NonNegativeInt, PositiveInt
from coterie.core.rng import streams as each_stream
from coterie.data.dataset import Dataset, Source
from coterie.data.lazy_rows import RowGenerator
from coterie.data.read.sources.normals import NormalStream

FEATURES, CLASSES = 60, 10
SCALE = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations: the variances are j^-1.2
MAX_STORED = 2**28  # bytes of inputs that are drawn at once
MOST_LEGACY = 1000  # clients that are drawn in the published order unless asked for
AHEAD = 4  # clients whose rows are finished in other threads while the next are drawn
SIZE_FACTORS = {"fedprox": 1, "pfedme": 5}  # n_i = (floor(LogNormal(4, 2)) + 50) * times


class SyntheticRows(NamedTuple):
    """Rows of all clients, one client after another."""

    x: np.ndarray  # [n, features] float32
    y: np.ndarray  # [n] int64 labels
    users: np.ndarray  # [n] int64


def synthetic(
    folder: Path,
    alpha: NonNegative = 0.5,
    beta: NonNegative = 0.5,
    num_clients: PositiveInt = 100,
    seed: int = 0,
    sizes: str = "pfedme",
    draws: str = "auto",
    rows_each: NonNegativeInt = 0,
) -> Dataset:
    """FedProx's Synthetic(alpha, beta): 60 features, 10 classes, a labelling rule per client.

    Client i has its own rule W_i, b_i ~ N(u_i, 1) and its own input mean v_i ~ N(B_i, 1), where
    u_i ~ N(0, alpha) and B_i ~ N(0, beta).

    alpha: how much labelling rules differ, a standard deviation as in the published code.
    beta: how much inputs differ, a standard deviation too.
    num_clients: number of clients.
    sizes: "fedprox" gives client i floor(LogNormal(4, 2)) + 50 rows, "pfedme" five times as many.
    draws: "legacy" repeats the published order of draws from one numpy RandomState; "streams" gives
        every client a stream of its own, so that client i is the same however many there are, and
        many clients are generated when they are needed; "auto" is legacy up to 1,000 clients.
    rows_each: rows of every client; 0: by sizes.
    """
    _check_options(alpha, beta, num_clients, sizes, draws)
    if _is_legacy(draws, num_clients):
        got = draw_legacy(alpha, beta, num_clients, seed, SIZE_FACTORS[sizes], rows_each)
    else:
        got = draw_streams(alpha, beta, _sizes_of(num_clients, seed, sizes, rows_each), seed)
    return Dataset(
        name="synthetic",
        x=got.x,
        y=got.y,
        classes=CLASSES,
        train=np.ones(len(got.x), bool),
        users=got.users,
    )


def build_generator(
    alpha: float = 0.5,
    beta: float = 0.5,
    num_clients: int = 100,
    seed: int = 0,
    sizes: str = "pfedme",
    draws: str = "auto",
    rows_each: int = 0,
) -> RowGenerator | None:
    """The same rows, made when they are asked for; None where they are few, or cannot be drawn
    client by client.
    """
    _check_options(alpha, beta, num_clients, sizes, draws)
    if _is_legacy(draws, num_clients):
        return None
    n = _sizes_of(num_clients, seed, sizes, rows_each)
    if n.sum() * FEATURES * 4 <= MAX_STORED:
        return None

    def make(some: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        mine = n[np.asarray(some, dtype=np.int64)]
        drawn = allocate_unchecked(mine)
        draw_clients(drawn, alpha, beta, mine, seed, some)
        return drawn.x, drawn.y

    words = (alpha, beta, num_clients, seed, SIZE_FACTORS[sizes], rows_each)
    return RowGenerator(n, make, CLASSES, digest=f"synthetic streams {words}")


def _check_options(alpha: float, beta: float, clients: int, sizes: str, draws: str) -> None:
    """Refuse options that say nothing."""
    if clients < 1 or alpha < 0 or beta < 0:
        raise BadInput(
            f"synthetic: num_clients = {clients}, alpha = {alpha}, beta = {beta}, "
            "but num_clients must be at least 1 and alpha and beta not negative"
        )
    for word, value, valid in (("sizes", sizes, SIZE_FACTORS), ("draws", draws, DRAWS)):
        if value not in valid:
            raise BadInput(f"synthetic: {word} = '{value}' is unknown{suggest_name(value, valid)}")


def _is_legacy(draws: str, clients: int) -> bool:
    """Whether rows are drawn in the published order; no published data have more clients."""
    return draws == "legacy" or (draws == "auto" and clients <= MOST_LEGACY)


def _sizes_of(clients: int, seed: int, sizes: str, rows_each: int) -> np.ndarray:
    """The rows of each client that has a stream of its own."""
    if rows_each:
        return np.full(clients, rows_each)
    return draw_sizes(clients, seed, SIZE_FACTORS[sizes])


def draw_legacy(
    alpha: float, beta: float, clients: int, seed: int, times: int, rows_each: int
) -> SyntheticRows:
    """All sizes, u, B and v_i, then W, b and x client by client, from one RandomState."""
    rng = np.random.RandomState(seed)
    n = (rng.lognormal(4, 2, clients).astype(int) + 50) * times
    n = np.full(clients, rows_each) if rows_each else n
    u, mean = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    v = [rng.normal(mean[i], 1, FEATURES) for i in range(clients)]
    drawn = allocate_rows(n)

    def finish(x: np.ndarray, i: int, rows: slice, w: np.ndarray, b: np.ndarray) -> None:
        x *= SCALE
        x += v[i]
        drawn.x[rows] = x
        drawn.y[rows] = (drawn.x[rows] @ w + b).argmax(1)

    with ThreadPoolExecutor(2) as pool:
        normals = NormalStream(rng, pool, int(n.sum()) * FEATURES)
        waiting: deque[Future[None]] = deque()
        for i, rows in enumerate(client_slices_of(n)):
            w = u[i] + normals.take(FEATURES * CLASSES).reshape(FEATURES, CLASSES)
            b = u[i] + normals.take(CLASSES)
            x = normals.take(int(n[i]) * FEATURES).reshape(-1, FEATURES)
            waiting.append(pool.submit(finish, x, i, rows, w, b))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
        for one in waiting:
            one.result()
    return drawn


def draw_streams(alpha: float, beta: float, n: np.ndarray, seed: int) -> SyntheticRows:
    """Client i from its own stream, straight into the one array that holds all rows."""
    drawn = allocate_rows(n)
    draw_clients(drawn, alpha, beta, n, seed, range(len(n)))
    return drawn


def draw_clients(
    drawn: SyntheticRows,
    alpha: float,
    beta: float,
    n: np.ndarray,
    seed: int,
    clients: Sequence[int],
) -> None:
    """Fill the rows of some clients, one client after another."""
    scale = SCALE.astype(np.float32)
    for rng, rows in zip(each_stream(seed, "synthetic", clients), client_slices_of(n), strict=True):
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


def draw_sizes(clients: int, seed: int, times: int) -> np.ndarray:
    """The rows of each client, by its own stream."""
    sizes = (rng.lognormal(4, 2) for rng in each_stream(seed, "synthetic", range(clients)))
    return (np.fromiter(sizes, float, clients).astype(np.int64) + 50) * times


DRAWS = ("auto", "legacy", "streams")


def allocate_rows(n: np.ndarray) -> SyntheticRows:
    """Empty rows for clients of the given sizes."""
    total = int(n.sum())
    check_memory(
        total * FEATURES * 4 * 2,  # once as drawn, once as partitioned
        f"{total:,} rows of {len(n):,} synthetic clients",
        "lower --num-clients, or use --draws streams, which makes rows when they are needed",
    )
    return allocate_unchecked(n)


def allocate_unchecked(n: np.ndarray) -> SyntheticRows:
    """The same, whatever the memory."""
    total = int(n.sum())
    users = np.repeat(np.arange(len(n)), n)
    return SyntheticRows(np.empty((total, FEATURES), np.float32), np.empty(total, np.int64), users)


def client_slices_of(n: np.ndarray) -> list[slice]:
    """The rows of each client."""
    ends = np.cumsum(n)
    return [slice(int(end - size), int(end)) for end, size in zip(ends, n, strict=True)]


SYNTHETIC = Source(synthetic, natural=True, network="mlr", cut="order", lazily=build_generator)
