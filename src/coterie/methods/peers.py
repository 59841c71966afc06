"""The nearest peers of every client, for servers that cannot keep a number per pair of clients.

Models or gradients are sketched by a seeded random projection to 64 numbers, which keeps distances
(Johnson, Lindenstrauss: Extensions of Lipschitz mappings into a Hilbert space, 1984). Peers are the
nearest sketches: among up to EXACT of them all pairs are looked at, block by block; more are first
gathered into groups by k-means, and peers are looked for in the nearest groups. Only whom a client
listens to rests on sketches: how much, on the exact distances of the peers that were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.core.device import to_double
from coterie.core.point import Point, flatten

SKETCH = 64  # numbers per sketch
EXACT = 20_000  # sketches among which all pairs are looked at
PROBES = 8  # groups in which the peers of a client are looked for
BLOCK = 2**20  # numbers that one step of a loop over clients may make: they fit the caches
STRIP = 2**16  # parameters that are projected at once


class Peers(NamedTuple):
    """Who is near whom."""

    ids: Tensor  # [n, m], nearest first
    there: Tensor  # [n, m], False where there are fewer peers


class Likeness(NamedTuple):
    """How near or alike clients are: each to all others, or to few peers."""

    values: Tensor  # [n, m], squared distances or cosines
    ids: Any = ()  # [n, m], the peers; (): all clients, in their order
    there: Any = ()  # [n, m], False for oneself, who is not known, and where there are fewer peers

    def take(self, values: Tensor) -> Tensor:
        """What clients have [N], as it stands beside `values`."""
        return values[self.ids] if isinstance(self.ids, Tensor) else values


def are_few(peers: int, clients: int) -> bool:
    """Whether so many peers are fewer than all others; else a method is taken as it is written."""
    return 0 < peers < clients - 1


def sketch(parts: Iterable[Tensor]) -> Tensor:
    """Rows [n, d], given in parts [n, ...], as [n, 64] with nearly the same distances; the rows
    themselves where they are no longer."""
    matrices = [part.flatten(1) for part in parts]
    if sum(part.shape[1] for part in matrices) <= SKETCH:
        return torch.cat(matrices, 1).float()
    points = torch.zeros(len(matrices[0]), SKETCH, dtype=torch.float32)
    seed = torch.Generator().manual_seed(0)  # the same projection in every round
    for part in matrices:
        for strip in part.split(STRIP, 1):
            drawn = torch.randn(strip.shape[1], SKETCH, generator=seed, dtype=torch.float32)
            points.addmm_(strip.float(), drawn)
    return points.div_(SKETCH**0.5)


def cut_blocks(rows: int, each: int) -> Iterator[slice]:
    """Slices of so many rows, each of which makes `each` numbers."""
    step = max(1, BLOCK // max(1, each))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def find_nearest(of: Tensor, on: Tensor, own: Tensor, count: int) -> Peers:
    """The `count` sketches of `on` [p, s] nearest to every one of `of` [n, s]; `own` [n]: the place
    in `on` of a client itself, which is not its peer, or -1."""
    count = min(count, len(on))
    if not count:
        nobody = torch.zeros(len(of), 0)
        return Peers(nobody.long(), nobody.bool())
    middle = on.mean(0)  # near 0 float32 tells more points apart
    of, on = of - middle, on - middle
    if len(on) <= EXACT:
        return _search_all(of, on, own, torch.arange(len(on)), count)
    return _search_groups(of, on, own, count)


def _search_all(of: Tensor, on: Tensor, own: Tensor, places: Tensor, count: int) -> Peers:
    """The nearest of the candidates `places`, sorted, by looking at all of them."""
    candidates = on[places]
    squares = candidates.square().sum(1)
    ids = torch.empty(len(of), count, dtype=torch.int64)
    there = torch.empty(len(of), count, dtype=torch.bool)
    for part in cut_blocks(len(of), len(places)):
        # less the square of `of`, which ranks nothing
        apart = torch.addmm(squares, of[part], candidates.T, alpha=-2)
        at = torch.searchsorted(places, own[part]).clamp(max=len(places) - 1)
        mine = (places[at] == own[part]).nonzero().flatten()
        apart[mine, at[mine]] = torch.inf
        found = apart.topk(count, largest=False)
        ids[part], there[part] = places[found.indices], found.values < torch.inf
    return Peers(ids, there)


def _search_groups(of: Tensor, on: Tensor, own: Tensor, count: int) -> Peers:
    """The nearest in the groups around a client's own group."""
    centres = find_centres(on, int(len(on) ** 0.5))
    nobody = torch.full((max(len(of), len(on)),), -1)
    groups = torch.arange(len(centres))
    home = _search_all(of, centres, nobody[: len(of)], groups, 1).ids[:, 0]
    group = _search_all(on, centres, nobody[: len(on)], groups, 1).ids[:, 0]
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
        ids[asking], there[asking] = _search_all(of[asking], on, own[asking], places, count)
    return Peers(ids, there)


def find_centres(points: Tensor, count: int) -> Tensor:
    """The centres [k, s] of at most `count` groups, by k-means."""
    from sklearn.cluster import MiniBatchKMeans

    enough = points[:: max(1, len(points) // (64 * count))]
    groups = MiniBatchKMeans(count, batch_size=4096, n_init=1, random_state=0).fit(enough.numpy())
    centres: Tensor = torch.as_tensor(groups.cluster_centers_, dtype=points.dtype).unique(dim=0)
    return centres


def measure_squares(parts: Iterable[Tensor], ids: Tensor) -> Tensor:
    """Squared distances [n, m] of rows, given in parts [n, ...], from the rows `ids` [n, m]."""
    squares = torch.zeros(ids.shape, dtype=torch.float64)
    for part in parts:
        rows = part.flatten(1)
        for block in cut_blocks(len(ids), ids.shape[1] * rows.shape[1]):
            apart = rows[ids[block]].sub_(rows[block, None])
            squares[block] += torch.linalg.vector_norm(apart, dim=-1).double().square()
    return squares


def measure_pairs(of: Tensor, on: Tensor) -> Tensor:
    """Squared distances [n, p] of rows [n, d] from rows [p, d], exact where they are near."""
    mode = "donot_use_mm_for_euclid_dist"
    apart: Tensor = torch.cdist(to_double(of), to_double(on), compute_mode=mode).square()
    return apart


def compare_gradients(g: Tensor, peers: int) -> Likeness:
    """Squared distances of gradients [n, d]: all, or from oneself and so many peers."""
    if not peers:
        return Likeness(measure_pairs(g, g))
    points, everyone = sketch([g]), torch.arange(len(g))
    found = find_nearest(points, points, everyone, min(peers, len(g) - 1))
    ids = torch.cat([everyone[:, None], found.ids], 1)
    return Likeness(measure_squares([g], ids), ids)


def compare_distances(models: Point, known: Tensor, peers: int) -> Likeness:
    """Squared distances of models from known [N] others: all, or so many peers."""
    parts = models.params.values()
    if peers:
        ids, there = _find_known(sketch(parts), known, peers)
        return Likeness(measure_squares(parts, ids), ids, there)
    w = flatten(models)
    w = to_double(w - w.mean(0))
    gram = w @ w.T
    square = gram.diagonal()
    return Likeness((square[:, None] + square - 2 * gram).clamp(min=0), (), _all_others(known))


def compare_cosines(models: Point, known: Tensor, peers: int) -> Likeness:
    """Cosines of models with known [N] others: all, or the largest of so many peers."""
    if not peers:
        unit = normalize(to_double(flatten(models)))
        return Likeness(unit @ unit.T, (), _all_others(known))
    parts = models.params.values()
    square = sum((a.flatten(1).double().square().sum(1) for a in parts), torch.zeros(()))
    length = square.sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    ids, there = _find_known(sketch(parts) / length[:, None].float(), known, peers)
    twice = square[:, None] + square[ids] - measure_squares(parts, ids)  # 2 <w_i, w_j>
    return Likeness(twice / (2 * length[:, None] * length[ids]), ids, there)


def _all_others(known: Tensor) -> Tensor:
    """[N, N], False for oneself and for who is not known."""
    return known.cpu().repeat(len(known), 1).fill_diagonal_(False)


def _find_known(points: Tensor, known: Tensor, peers: int) -> Peers:
    """The known clients that are nearest to each."""
    places = known.nonzero().flatten()
    own = torch.where(known, known.cumsum(0) - 1, -1)
    found = find_nearest(points, points[places], own, peers)
    return Peers(places[found.ids], found.there)
