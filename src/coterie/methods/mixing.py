"""What clients take from each other: a weight for every pair, or for every client and few peers.

A `Mixing` is a method's matrix over clients: UCFL's W, KT-pFL's c, FedAMP's xi, FedFomo's P. Where
a method is given fewer `peers` than there are others, a row keeps so many entries, and the method
calls the same functions: which form it is, is decided once, by `start_...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from coterie.core.device import to_numpy
from coterie.core.point import mean, pick, tree_map
from coterie.methods.peers import Likeness, are_few, cut_blocks

T = TypeVar("T")

FREE = -1  # the id in a place that nobody has taken
SHOWN = 1_000  # clients up to which few entries are shown as the matrix that they are


class Mixing(NamedTuple):
    """Rows of weights on clients."""

    weights: Tensor  # [n, N]; over few peers [n, m]
    ids: Any = ()  # over few peers [n, m], whose the weights are, or FREE; (): all, in their order

    @property
    def sparse(self) -> bool:
        """Whether rows keep few entries."""
        return isinstance(self.ids, Tensor)

    def limit(self, peers: int) -> int:
        """How many peers a row keeps of so many that were asked for; 0: all."""
        return peers if self.sparse else 0

    # Mix

    def mix_rows(self, stacked: T) -> T:
        """Every row's weighted sum over a stack of trees."""
        return tree_map(self._mix_tensor, stacked) if self.sparse else mean(stacked, self.weights)

    def mix_early(self, stacked: T) -> Any:
        """Every row's mixture, where all at once are cheaper than one by one; else ()."""
        return () if self.sparse else self.mix_rows(stacked)

    def mix(self, stacked: T, i: int, early: Any = ()) -> T:
        """Client i's mixture; `early`: what `mix_early` gave."""
        found: T = pick(early, i) if early else pick(pick(self, [i]).mix_rows(stacked), 0)
        return found

    def mix_among(self, stacked: T, i: int, ids: Tensor) -> T:
        """Client i's mixture of what the clients `ids`, in order, have: by its weights on them,
        scaled to sum 1, or by equal ones."""
        if not self.sparse:
            return mean(stacked, scale_rows(self.weights[i, ids]))
        at, there = find_places(self.ids[i], ids)
        row = Mixing(torch.where(there, self.weights[i], 0.0)[None], at[None])
        if not there.any():
            row = Mixing(torch.zeros(1, len(ids)), torch.arange(len(ids))[None])
        return pick(row._replace(weights=scale_rows(row.weights)).mix_rows(stacked), 0)

    def _mix_tensor(self, stacked: Tensor) -> Tensor:
        if not stacked.is_floating_point():  # BatchNorm's count of batches
            return self._mix_tensor(stacked.double()).round().to(stacked.dtype)
        flat = stacked.reshape(len(stacked), -1)
        sums = torch.empty(len(self.ids), flat.shape[1], dtype=stacked.dtype)
        weights = self.weights.to(stacked.dtype)[:, None]
        for block in cut_blocks(len(sums), self.ids.shape[1] * flat.shape[1]):
            sums[block] = torch.bmm(weights[block], flat[self.ids[block]])[:, 0]
        return sums.reshape(len(sums), *stacked.shape[1:])

    # Learn

    def replace(self, of: Tensor, rows: Mixing) -> Mixing:
        """The same with other rows of the clients `of`."""
        if not self.sparse:
            new = rows.to_matrix(self.weights.shape[1])
            return Mixing(self.weights.index_copy(0, of, new))
        return tree_map(lambda old, new: old.index_copy(0, of, new), self, rows)

    def replace_among(self, ids: Tensor, rows: Mixing) -> Mixing:
        """The same with rows of the clients `ids` over each other, which have no other entries."""
        if not self.sparse:
            weights = self.weights.clone()
            weights[ids] = 0
            weights[ids[:, None], ids] = rows.weights
            return Mixing(weights)
        width = rows.ids.shape[1]
        columns = torch.arange(len(self.ids))[:, None].repeat(1, width)
        none = torch.zeros(len(self.ids), width, dtype=rows.weights.dtype)
        return Mixing(
            none.index_copy(0, ids, rows.weights), columns.index_copy(0, ids, ids[rows.ids])
        )

    def add(self, of: Tensor, ids: Tensor, scores: Tensor) -> Mixing:
        """Scores [a, k] added to the entries of the clients `of` [a] on others `ids` [a, k]; rows
        of few keep the entries that are furthest from 0."""
        if not self.sparse:
            return Mixing(self.weights.index_put((of[:, None], ids), scores, accumulate=True))
        old, p = self.ids[of], self.weights[of]
        ids = torch.where(ids == of[:, None], FREE, ids)  # oneself has no entry
        hit = (ids[:, :, None] == old[:, None]) & (ids != FREE)[:, :, None]
        p = p + (hit * scores[:, :, None]).sum(1)
        fresh = ~hit.any(2) & (ids != FREE)
        everyone = torch.cat([old, torch.where(fresh, ids, FREE)], 1)
        values = torch.cat([p, torch.where(fresh, scores, 0.0)], 1)
        far = torch.where(everyone == FREE, -1.0, values.abs())
        best = far.topk(old.shape[1]).indices
        return self.replace(of, Mixing(values.gather(1, best), everyone.gather(1, best)))

    def keep(self, rows: Tensor) -> Mixing:
        """Rows of weights on all clients as this one keeps them: few are the largest, scaled to
        sum 1."""
        if not self.sparse:
            return Mixing(rows)
        found = rows.topk(self.ids.shape[1])
        return Mixing(found.values / found.values.sum(1, keepdim=True), found.indices)

    def over_groups(self, group: Tensor, count: int) -> Mixing:
        """The weights on clients as weights on the groups [N] that they are in."""
        if not self.sparse:
            return Mixing(self.weights @ one_hot(group, count).to(self.weights.dtype))
        return Mixing(self.weights, group[self.ids])

    # Admit

    def admit(self, row: Tensor | None = None) -> Mixing:
        """One more client, of which nobody takes anything; its weights on all are `row` or 0, and
        over few peers it has none yet."""
        if self.sparse:
            ids = torch.full((1, self.ids.shape[1]), FREE)
            none = torch.zeros(ids.shape, dtype=self.weights.dtype)
            return Mixing(torch.cat([self.weights, none]), torch.cat([self.ids, ids]))
        wider = pad(self.weights, (0, 1, 0, 1))
        return Mixing(wider if row is None else torch.cat([wider[:-1], row[None]]))

    def admit_equal(self) -> Mixing:
        """One more client after `start_equal`: everyone takes the same part of it, and it of all;
        over few peers its places are free."""
        n = len(self.weights)
        if self.sparse:
            mine = _start_places(1, self.ids.shape[1], first=n)
            more = torch.full(mine.shape, 1 / mine.shape[1], dtype=self.weights.dtype)
            return Mixing(torch.cat([self.weights, more]), torch.cat([self.ids, mine]))
        wider = torch.full((n + 1, n + 1), 1 / (n + 1))
        wider[:n, :n] = self.weights * n / (n + 1)
        return Mixing(wider)

    # Describe

    def to_matrix(self, columns: int) -> Tensor:
        """The weights [n, columns]; free places count nothing."""
        if not self.sparse:
            return pad(self.weights, (0, columns - self.weights.shape[1]))
        none = torch.zeros(len(self.ids), columns, dtype=self.weights.dtype)
        weights = torch.where(self.ids == FREE, 0.0, self.weights)
        return none.scatter_add(1, self.ids.clamp(min=0), weights)

    def describe(self, name: str) -> dict[str, Tensor]:
        """The matrix for reports, where it is known and small enough to be looked at."""
        if not self.sparse:
            return {name: self.weights}
        shown = self.ids.shape[1] and len(self.ids) <= SHOWN
        return {name: self.to_matrix(len(self.ids))} if shown else {}

    def rank(self, i: int, known: Tensor, eps: float, rng: np.random.Generator) -> Iterator[int]:
        """Other clients of those known [N], one after the other: that of client i's largest entry,
        or any with chance eps; ties fall at random."""
        there = to_numpy(known.nonzero().flatten())
        if self.sparse:
            yield from self._rank_few(i, known, there, eps, rng)
            return
        there = rng.permutation(there)
        order = np.argsort(-to_numpy(self.weights[i])[there], kind="stable")
        left = [int(j) for j in there[order] if j != i]
        while left:
            yield left.pop(int(rng.integers(len(left))) if rng.random() < eps else 0)

    def _rank_few(
        self, i: int, known: Tensor, there: np.ndarray, eps: float, rng: np.random.Generator
    ) -> Iterator[int]:
        """The same where few entries are kept: those of all others are 0."""
        entries = zip(self.ids[i].tolist(), self.weights[i].tolist(), strict=True)
        row = {j: p for j, p in entries if j != FREE and known[j]}
        taken, most = [i], len(there) + (not known[i])
        while len(taken) < most:
            left = sorted((j for j in row if j not in taken), key=lambda j: -row[j])
            new = (j for j in _draw(there, rng) if j not in taken and j not in row)
            untried = next(new, FREE)
            if rng.random() < eps:
                taken.append(next(j for j in _draw(there, rng) if j not in taken))
            elif left and (row[left[0]] > 0 or untried == FREE):
                taken.append(left[0])
            else:
                taken.append(untried)
            yield taken[-1]


def _draw(clients: np.ndarray, rng: np.random.Generator) -> Iterator[int]:
    """Clients in a random order: some drawn at once, then all."""
    for size in (min(len(clients), 8), len(clients)):
        yield from rng.choice(clients, size, replace=False).tolist()


# Begin


def start_zero(clients: int, peers: int) -> Mixing:
    """Nobody takes anything."""
    if are_few(peers, clients):
        return Mixing(torch.zeros(clients, peers), torch.full((clients, peers), FREE))
    return Mixing(torch.zeros(clients, clients))


def start_own(clients: int, peers: int) -> Mixing:
    """Everyone takes only from itself."""
    if are_few(peers, clients):
        return Mixing(torch.ones(clients, 1), torch.arange(clients)[:, None])
    return Mixing(torch.eye(clients))


def start_equal(clients: int, peers: int) -> Mixing:
    """Everyone takes the same from all; over few peers from itself and from m free places."""
    width = peers + 1 if are_few(peers, clients) else clients
    weights = torch.full((clients, width), 1 / width)
    return Mixing(weights, _start_places(clients, width)) if width < clients else Mixing(weights)


def start_rows(row: Tensor, peers: int) -> Mixing:
    """Everyone has the weights `row` [N]; over few peers none are known."""
    if are_few(peers, len(row)):
        return Mixing(torch.zeros(len(row), 0), torch.zeros(len(row), 0, dtype=torch.int64))
    return Mixing(row.repeat(len(row), 1))


def _start_places(clients: int, width: int, first: int = 0) -> Tensor:
    """Places [clients, width], the first of which is a client's own; the others are free."""
    ids = torch.full((clients, width), FREE)
    ids[:, 0] = torch.arange(first, first + clients)
    return ids


def keep_rest(near: Likeness, weights: Tensor, factor: float) -> Mixing:
    """Weights [N, m] times a factor on the others of `near`, the rest of 1 on oneself."""
    others = factor * weights
    few = isinstance(near.ids, Tensor)
    taken = factor * weights.sum(1, keepdim=True) if few else others.sum(1, keepdim=True)
    return join_own(near, others, (1 - taken).clamp(min=0))


def join_own(near: Likeness, others: Tensor, own: Tensor) -> Mixing:
    """Weights [N, m] on the others of `near`, and what a client keeps of itself [N, 1]."""
    if not isinstance(near.ids, Tensor):
        return Mixing(others + torch.diag(own.flatten()))
    itself = torch.arange(len(others))[:, None]
    return Mixing(torch.cat([own.to(others.dtype), others], 1), torch.cat([itself, near.ids], 1))


def scale_rows(rows: Tensor) -> Tensor:
    """Rows scaled to sum 1; equal where they have no mass."""
    mass = rows.sum(-1, keepdim=True)
    return torch.where(mass > 0, rows / mass, 1 / rows.shape[-1])


def find_places(row: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where the clients of rows stand among `ids`, in order, and whether they do."""
    at = torch.searchsorted(ids, row).clamp(max=len(ids) - 1)
    return at, ids[at] == row
