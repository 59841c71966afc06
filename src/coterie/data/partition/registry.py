"""The registry of splits: who gets which rows, by name.

A split is a function `(labels, clients, rng, *, options) -> rows of each client`. Most published
recipes are a table of counts [clients, classes]; the shuffled rows of each class are cut by it, so
no row is ever assigned twice.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import numpy as np

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.options import coerce, declared_options
from coterie.data.client_rows import ClientRows
from coterie.data.partition.counts import Parts, Rng
from coterie.data.partition.generic import classes, dirichlet, iid, user
from coterie.data.partition.published import (
    femnist,
    ktpfl_1,
    ktpfl_2,
    lognormal,
    pairs,
    perfedavg,
    pfedme_cifar,
    powerlaw,
)

GroupFunction = Callable[[int, int], np.ndarray]  # (clients, kinds of labels) -> [clients] int64


def group_none(clients: int, kinds: int) -> np.ndarray:
    """Nobody is in a group of their own."""
    return np.zeros(clients, np.int64)


def group_halves(clients: int, kinds: int) -> np.ndarray:
    """The first half of the clients, and the second."""
    return (np.arange(clients) >= clients // 2).astype(np.int64)


def group_by_class(clients: int, kinds: int) -> np.ndarray:
    """Clients that begin with the same class."""
    return np.arange(clients) % kinds


def group_by_pair(clients: int, kinds: int) -> np.ndarray:
    """Clients that hold the same two classes."""
    return np.arange(clients) % (kinds // 2)


class Partitioner(NamedTuple):
    """One registered split: how it partitions, and what is special about it."""

    deal: Callable[..., Parts]
    clients: int = 20  # the default number of them
    groups: GroupFunction = group_none  # which clients are alike by design
    natural: bool = False  # it keeps natural clients, takes `users`, and all of them by default
    labels: bool = True  # it needs class labels


PARTITIONERS: dict[str, Partitioner] = {
    "iid": Partitioner(iid, labels=False),
    "classes": Partitioner(classes),
    "dirichlet": Partitioner(dirichlet),
    "lognormal": Partitioner(lognormal, clients=10, groups=group_by_class),
    "perfedavg": Partitioner(perfedavg, clients=10, groups=group_halves),
    "pairs": Partitioner(pairs, groups=group_by_pair),
    "pfedme-cifar": Partitioner(pfedme_cifar, groups=group_by_class),
    "ktpfl-1": Partitioner(ktpfl_1, groups=group_halves),
    "ktpfl-2": Partitioner(ktpfl_2),
    "powerlaw": Partitioner(powerlaw, clients=1000, groups=group_by_class),
    "femnist": Partitioner(femnist, clients=200, groups=group_by_class),
    "user": Partitioner(user, natural=True, labels=False),
}


def default_partition_of(natural: bool, classed: bool = True) -> str:
    """The split of data with or without natural clients and classes where none is named."""
    return "user" if natural else "classes" if classed else "iid"


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """The options of a split: the keyword arguments of its function that have a default."""
    if name not in PARTITIONERS:
        raise BadInput(f"there is no partition '{name}'" + suggest_name(name, PARTITIONERS))
    found = inspect.signature(PARTITIONERS[name].deal).parameters.values()
    return {p.name: p for p in found if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def partition_rows(
    name: str,
    labels: np.ndarray,
    clients: int | None,
    rng: Rng,
    users: np.ndarray | None = None,
    **options: Any,
) -> ClientRows:
    """Run the split `name` with checked options: disjoint rows, none for nobody."""
    _check_options(name, options)
    split = PARTITIONERS[name]
    if split.natural:
        options["users"] = users
    elif clients is None:
        clients = split.clients
    if split.labels and labels.dtype.kind not in "iu":
        raise BadInput(
            f"partition '{name}' needs class labels, but these data have none; use iid or user"
        )
    if clients is not None and not 1 <= clients <= len(labels):
        raise BadInput(
            f"num_clients = {clients:,}, but there are {len(labels):,} rows to partition; "
            f"give 1 to {len(labels):,}"
        )
    parts = ClientRows.of(split.deal(labels, clients, rng, **options))
    if not parts.counts.all():
        client = int(parts.counts.argmin())
        raise BadInput(
            f"client {client} got no rows from partition '{name}'; "
            "use fewer clients or a milder one"
        )
    return parts


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Refuse an option that the split does not have, or a value of another type."""
    valid = options_of(name)
    for key, value in options.items():
        if key not in valid:
            raise BadInput(f"partition '{name}' has no option '{key}'" + suggest_name(key, valid))
        kind, default = declared_options(PARTITIONERS[name].deal)[key]
        if not _is_allowed(value, kind):
            wanted = " or ".join(t.__name__ for t in _types_of(kind))
            raise BadInput(
                f"option {key} = {format_value(value)} of partition '{name}' must be {wanted}"
            )
        coerce(kind, value, key, default)


def groups_of(name: str, clients: int, kinds: int) -> np.ndarray:
    """[clients] the group a split puts each client in, zeros where it has none."""
    return PARTITIONERS[name].groups(clients, kinds)


def _types_of(annotation: Any) -> tuple[type, ...]:
    """The types that an annotation allows."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _types_of(inner[0])
    if origin is Literal:
        return tuple({type(choice) for choice in inner})
    return tuple(kind for part in inner for kind in _types_of(part)) or (annotation,)


def _is_allowed(value: object, annotation: Any) -> bool:
    kinds = _types_of(annotation)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))
