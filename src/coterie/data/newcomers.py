"""Clients that are kept out of training, and come when it is over."""

from collections.abc import Sequence

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.data.arrays import digest_of
from coterie.data.client_rows import ClientRows
from coterie.data.federation import PARTS, Federation, Newcomers, part_of


def select_newcomers(wanted: float, clients: int, seed: int) -> np.ndarray:
    """Which clients are newcomers: a share below 1 of them, or a count, drawn by the seed."""
    if not wanted:
        return np.zeros(0, np.int64)
    if wanted >= 1 and wanted != int(wanted):
        raise BadInput(f"newcomers = {wanted:g}: give a share below 1, or a whole number")
    count = max(1, round(wanted * clients)) if wanted < 1 else int(wanted)
    if count >= clients:
        raise BadInput(
            f"newcomers = {wanted:g} keeps {count:,} of {clients:,} clients out of training: "
            "at least one must be left; lower --newcomers"
        )
    return np.sort(stream(seed, "newcomers").choice(clients, count, replace=False))


def keep_out(federation: Federation, numbers: np.ndarray) -> Federation:
    """The federation without some of its clients, who are its newcomers from then on."""
    if not len(numbers):
        return federation
    stay = np.setdiff1d(np.arange(federation.clients), numbers)
    groups = np.asarray(federation.groups)

    def of(who: np.ndarray, part: str) -> ClientRows:
        return ClientRows.of(part_of(federation, part)).only(who)

    late = Newcomers(
        train=of(numbers, "train"),
        validation=of(numbers, "validation"),
        select=of(numbers, "select"),
        test=of(numbers, "test"),
        groups=groups[numbers],
        names=[federation.names[i] for i in numbers],
    )
    return federation._replace(
        train=of(stay, "train"),
        validation=of(stay, "validation"),
        select=of(stay, "select") if len(federation.select) else (),
        test=of(stay, "test"),
        groups=groups[stay],
        names=[federation.names[i] for i in stay],
        truth=None if federation.truth is None else federation.truth[stay],
        newcomers=late,
    )


def with_newcomers(federation: Federation) -> Federation:
    """All clients, the newcomers behind those that were trained."""
    late = federation.newcomers
    if late is None:
        return federation
    return federation._replace(
        train=_append_clients(federation.train, late.train),
        validation=_append_clients(federation.validation, late.validation),
        select=_append_clients(part_of(federation, "select"), late.select),
        test=_append_clients(federation.test, late.test),
        groups=np.concatenate([np.asarray(federation.groups), late.groups]),
        names=[*federation.names, *late.names],
        newcomers=None,
    )


def digest_partition(federation: Federation) -> str:
    """A digest of which rows of the data every client has, newcomers too, whatever their parts are;
    "" where that is not known.
    """
    if federation.rows is None:
        return ""
    everybody = with_newcomers(federation)
    names = np.array(everybody.names)
    held = [ClientRows.of(part_of(everybody, part)) for part in PARTS]
    owners = np.argsort(np.argsort(names))[np.concatenate([part.owners() for part in held])]
    rows = np.asarray(federation.rows)[np.concatenate([part.concatenate() for part in held])]
    # what is in several parts of a client, as a test part of everybody, is held once
    pairs = np.sort(owners * (rows.max(initial=0) + 1) + rows)  # much faster than np.unique
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return digest_of(np.frombuffer("\x1f".join(sorted(names)).encode(), np.uint8), pairs)


def _append_clients(here: Sequence[np.ndarray], late: Sequence[np.ndarray]) -> ClientRows:
    return ClientRows.of(here).plus(ClientRows.of(late))


def with_few_rows(late: Newcomers, rows: int, seed: int) -> Newcomers:
    """The newcomers with so many training rows each, and as large a share of their validation rows;
    fewer rows are always among more.
    """

    def few(part: Sequence[np.ndarray], option: str, share: list[float]) -> list[np.ndarray]:
        return [
            stream(seed, "few-shot", option, k).permutation(mine)[
                : max(1, round(share[k] * len(mine)))
            ]
            if len(mine)
            else mine
            for k, mine in enumerate(part)
        ]

    share = [min(1.0, rows / len(mine)) for mine in late.train]
    return late._replace(
        train=few(late.train, "train", share), validation=few(late.validation, "validation", share)
    )
