"""Splits for any data: equal parts, a few classes per client, Dirichlet shares, natural clients."""

import math
from typing import Literal

import numpy as np

from coterie.core.errors import BadInput, suggest_name
from coterie.core.options import BelowOne, NonNegativeInt, Positive, PositiveInt
from coterie.data.client_rows import ClientRows
from coterie.data.partition.counts import (
    Parts,
    Rng,
    assign_classes,
    assign_rows,
    check_classes_each,
    cut_shares,
    equal_shares,
    round_shares,
)


def iid(labels: np.ndarray, clients: int, rng: Rng) -> Parts:
    """Shuffle and cut in equal parts."""
    return np.array_split(rng.permutation(len(labels)), clients)


def classes(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: PositiveInt = 3,
    jitter: BelowOne = 0.0,
    each: PositiveInt | None = None,
) -> Parts:
    """PersFL DS-1: some classes per client, each class shared equally by its owners.

    All classes have equally many owners, or one more.

    classes_each: number of classes of each client.
    jitter: how unequal the owners' shares of a class are, by random factors from 1 - jitter to 1 +
        jitter; 0: equal.
    each: rows of each of its classes for every client; none: all rows are shared.
    """
    values, sizes = np.unique(labels, return_counts=True)
    check_classes_each(classes_each, len(values))
    if not 0 <= jitter < 1:
        raise BadInput(f"jitter = {jitter}: give a number from 0 (equal shares) to less than 1")
    if each is not None and jitter:
        raise BadInput(f"jitter = {jitter} has no effect on each = {each} rows per class: drop one")
    owner = assign_classes(clients, len(values), classes_each, rng)
    if each is not None:
        return assign_rows(labels, owner * each, rng)
    counts = np.zeros(owner.shape, int)
    for label, size in enumerate(sizes):
        owners = np.flatnonzero(owner[:, label])
        if len(owners) == 0:  # fewer slots than classes
            continue
        if len(owners) > size:
            raise BadInput(
                f"class {values[label]} has {size:,} rows for {len(owners):,} owners; "
                f"lower num_clients = {clients:,} or classes_each = {classes_each}"
            )
        shares = 1 + jitter * rng.uniform(-1, 1, len(owners))
        counts[owners, label] = (
            cut_shares(shares / shares.sum(), size) if jitter else equal_shares(size, len(owners))
        )
    return assign_rows(labels, counts, rng)


def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    alpha: Positive = 0.4,
    rule: Literal["cut", "round", "round-first"] = "cut",
    smallest: NonNegativeInt = 10,
) -> Parts:
    """For each class q ~ Dir(alpha), the shares of the clients, rounded by one of three rules.

    alpha: concentration: the smaller, the more clients differ.
    rule: "cut" at floor(cumsum(q) n), as CFL and UCFL do; "round" q n; "round-first" takes the
        first class's n for all classes, as the published generator of PersFL DS-2 does.
    smallest: shares are drawn again, at most 100 times, until every client has so many rows; 0
        takes the first draw.
    """
    if not 0 < alpha < math.inf:
        raise BadInput(f"alpha = {alpha}: a Dirichlet split needs a number above 0, such as 0.4")
    rules = ("cut", "round", "round-first")
    if rule not in rules:
        raise BadInput(f"rule = '{rule}' is no Dirichlet rule" + suggest_name(rule, rules))
    if smallest * clients > len(labels):
        raise BadInput(
            f"{clients:,} clients of at least smallest = {smallest} rows "
            f"need {smallest * clients:,} rows, but there are {len(labels):,}: "
            f"at most {len(labels) // smallest:,}; lower clients or smallest"
        )
    share = cut_shares if rule == "cut" else round_shares
    sizes = np.unique(labels, return_counts=True)[1]
    if rule == "round-first":
        sizes = np.minimum(sizes, sizes[0])
    for _ in range(100 if smallest > 0 else 1):
        draw = rng.dirichlet(np.full(clients, alpha), len(sizes))
        counts = np.stack([share(q, size) for q, size in zip(draw, sizes, strict=True)], axis=1)
        if counts.sum(1).min() >= smallest:
            return assign_rows(labels, counts, rng)
    raise BadInput(
        f"alpha = {alpha} with {clients:,} clients left one with fewer than {smallest} rows "
        "in 100 draws; raise alpha, lower clients or lower smallest"
    )


def user(
    labels: np.ndarray,
    clients: int | None,
    rng: Rng,
    *,
    users: np.ndarray | None,
    smallest: NonNegativeInt = 1,
) -> Parts:
    """The natural clients in order of their number; all of them, or a random choice.

    smallest: fewest rows of a client; those with fewer are left out.
    """
    if users is None:
        raise BadInput(
            "partition 'user' needs data with natural clients; use another partition or a client "
            "column"
        )
    parts = ClientRows.by_owner(np.arange(len(users)), users)
    parts = parts.only(np.flatnonzero(parts.counts >= smallest))
    clients = len(parts) if clients is None else clients
    if clients > len(parts) or not len(parts):
        raise BadInput(
            f"num_clients = {clients:,}, but the data have {len(parts):,} natural clients "
            f"of at least {smallest} rows; lower clients or smallest"
        )
    return parts.only(np.sort(rng.choice(len(parts), clients, replace=False)))
