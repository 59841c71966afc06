"""The nearest peers of every client, for servers that cannot keep a number per pair of clients.

Models or gradients are sketched by a seeded random projection to 64 numbers, which keeps distances
(Johnson, Lindenstrauss: Extensions of Lipschitz mappings into a Hilbert space, 1984). Peers are the
nearest sketches: among up to EXACT of them all pairs are looked at, block by block; more are first
gathered into groups by k-means, and peers are looked for in the nearest groups. Only whom a client
listens to rests on sketches: how much, on the exact distances of the peers that were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from coterie.core.point import tree

T = TypeVar("T")

SKETCH = 64  # numbers per sketch
EXACT = 20_000  # sketches among which all pairs are looked at
PROBES = 8  # groups in which the peers of a client are looked for
BLOCK = 2**20  # numbers that one step of a loop over clients may make: they fit the caches
STRIP = 2**16  # parameters that are projected at once
NOTED = 1_000  # clients up to which sparse rows are noted as the matrix that they are


class Rows(NamedTuple):
    """Rows of a matrix of which only few entries are kept."""

    ids: Tensor  # [n, m], the columns
    weights: Tensor  # [n, m]


class Peers(NamedTuple):
    """Who is near whom."""

    ids: Tensor  # [n, m], nearest first
    there: Tensor  # [n, m], False where there are fewer peers


def few(peers: int, clients: int) -> bool:
    """Whether so many peers are fewer than all others; else a method is taken as it is written."""
    return 0 < peers < clients - 1


def sketch(parts: Iterable[Tensor]) -> Tensor:
    """Rows [n, d], given in parts [n, ...], as [n, 64] with nearly the same distances; the rows
    themselves where they are no longer."""
    flat = [part.flatten(1) for part in parts]
    if sum(part.shape[1] for part in flat) <= SKETCH:
        return torch.cat(flat, 1).float()
    made = torch.zeros(len(flat[0]), SKETCH, dtype=torch.float32)
    seed = torch.Generator().manual_seed(0)  # the same projection in every round
    for part in flat:
        for strip in part.split(STRIP, 1):
            drawn = torch.randn(strip.shape[1], SKETCH, generator=seed, dtype=torch.float32)
            made.addmm_(strip.float(), drawn)
    return made.div_(SKETCH**0.5)


def blocks(rows: int, each: int) -> Iterator[slice]:
    """Slices of so many rows, each of which makes `each` numbers."""
    step = max(1, BLOCK // max(1, each))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def nearest(of: Tensor, on: Tensor, own: Tensor, count: int) -> Peers:
    """The `count` sketches of `on` [p, s] nearest to every one of `of` [n, s]; `own` [n]: the place
    in `on` of a client itself, which is not its peer, or -1."""
    count = min(count, len(on))
    if not count:
        nobody = torch.zeros(len(of), 0)
        return Peers(nobody.long(), nobody.bool())
    middle = on.mean(0)  # near 0 float32 tells more points apart
    of, on = of - middle, on - middle
    if len(on) <= EXACT:
        return _among(of, on, own, torch.arange(len(on)), count)
    return _in_groups(of, on, own, count)


def _among(of: Tensor, on: Tensor, own: Tensor, places: Tensor, count: int) -> Peers:
    """The nearest of the candidates `places`, sorted, by looking at all of them."""
    candidates = on[places]
    squares = candidates.square().sum(1)
    ids = torch.empty(len(of), count, dtype=torch.int64)
    there = torch.empty(len(of), count, dtype=torch.bool)
    for part in blocks(len(of), len(places)):
        # less the square of `of`, which ranks nothing
        apart = torch.addmm(squares, of[part], candidates.T, alpha=-2)
        at = torch.searchsorted(places, own[part]).clamp(max=len(places) - 1)
        mine = (places[at] == own[part]).nonzero().flatten()
        apart[mine, at[mine]] = torch.inf
        found = apart.topk(count, largest=False)
        ids[part], there[part] = places[found.indices], found.values < torch.inf
    return Peers(ids, there)


def _in_groups(of: Tensor, on: Tensor, own: Tensor, count: int) -> Peers:
    """The nearest in the groups around a client's own group."""
    centres = gathered(on, int(len(on) ** 0.5))
    nobody = torch.full((max(len(of), len(on)),), -1)
    groups = torch.arange(len(centres))
    home = _among(of, centres, nobody[: len(of)], groups, 1).ids[:, 0]
    group = _among(on, centres, nobody[: len(on)], groups, 1).ids[:, 0]
    around = torch.cdist(centres, centres).argsort(1)
    order, sizes = group.argsort(stable=True), group.bincount(minlength=len(centres))
    starts = sizes.cumsum(0) - sizes
    ids = torch.empty(len(of), count, dtype=torch.int64)
    there = torch.empty(len(of), count, dtype=torch.bool)
    queries = home.argsort(stable=True).split(home.bincount(minlength=len(centres)).tolist())
    for g, asking in enumerate(queries):
        if not len(asking):
            continue
        enough = int((sizes[around[g]].cumsum(0) <= count).sum()) + 1
        near = around[g][: max(PROBES, enough)].tolist()
        places = torch.cat([order[starts[j] : starts[j] + sizes[j]] for j in near]).sort().values
        ids[asking], there[asking] = _among(of[asking], on, own[asking], places, count)
    return Peers(ids, there)


def gathered(points: Tensor, count: int) -> Tensor:
    """The centres [k, s] of at most `count` groups, by k-means."""
    from sklearn.cluster import MiniBatchKMeans

    enough = points[:: max(1, len(points) // (64 * count))]
    made = MiniBatchKMeans(count, batch_size=4096, n_init=1, random_state=0).fit(enough.numpy())
    centres: Tensor = torch.as_tensor(made.cluster_centers_, dtype=points.dtype).unique(dim=0)
    return centres


def squares(parts: Iterable[Tensor], ids: Tensor) -> Tensor:
    """Squared distances [n, m] of rows, given in parts [n, ...], from the rows `ids` [n, m]."""
    made = torch.zeros(ids.shape, dtype=torch.float64)
    for part in parts:
        rows = part.flatten(1)
        for block in blocks(len(ids), ids.shape[1] * rows.shape[1]):
            apart = rows[ids[block]].sub_(rows[block, None])
            made[block] += torch.linalg.vector_norm(apart, dim=-1).double().square()
    return made


def mixed(stacked: T, rows: Rows) -> T:
    """Weighted sums over a stack of trees, a tree for each of the rows."""
    return tree(lambda a: _mixed(a, rows), stacked)


def _mixed(stacked: Tensor, rows: Rows) -> Tensor:
    if not stacked.is_floating_point():  # BatchNorm's count of batches
        return _mixed(stacked.double(), rows).round().to(stacked.dtype)
    flat = stacked.reshape(len(stacked), -1)
    made = torch.empty(len(rows.ids), flat.shape[1], dtype=stacked.dtype)
    weights = rows.weights.to(stacked.dtype)[:, None]
    for block in blocks(len(made), rows.ids.shape[1] * flat.shape[1]):
        made[block] = torch.bmm(weights[block], flat[rows.ids[block]])[:, 0]
    return made.reshape(len(made), *stacked.shape[1:])


def dense(rows: Rows, columns: int) -> Tensor:
    """The matrix [n, columns]."""
    return torch.zeros(len(rows.ids), columns, dtype=rows.weights.dtype).scatter_add(
        1, rows.ids, rows.weights
    )


def noted(rows: Rows) -> Tensor | None:
    """A square matrix for reports, where it is small enough to be looked at."""
    return dense(rows, len(rows.ids)) if len(rows.ids) <= NOTED else None
