"""How many clients a server can keep: what would not fit is refused before the first round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from coterie.core.errors import BadInput
from coterie.core.memory import gigabytes, memory
from coterie.methods.peers import are_few

SMALLER = "give fewer clients or a smaller network"
SHARE = 2  # a server may take one part in so many of the machine's memory


def most_clients(needed: Callable[[int], int]) -> int:
    """The largest number of clients whose bytes fit."""
    low, high = 0, 1
    while needed(high) <= memory() // SHARE and high < 2**40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = needed(middle) <= memory() // SHARE
        low, high = (middle, high) if fits else (low, middle)
    return low


def check_clients(name: str, clients: int, needed: Callable[[int], int], way: str = "") -> None:
    """Refuse more clients than the server has memory for, with the number at which it stops; `way`:
    what to do but to give fewer clients or a smaller network. Without it the server already keeps
    few numbers per client, which it finds on the processor only."""
    if not way and torch.get_default_device().type != "cpu":
        raise BadInput(
            f"{name} finds peers and bundles on the processor only, not on "
            f"{torch.get_default_device()}: leave out --device, or --peers and --bundles"
        )
    if needed(clients) > memory() // SHARE:
        raise BadInput(
            f"{name} with {clients:,} clients takes {gigabytes(needed(clients))} GB at the "
            f"server, more than half of this machine's {gigabytes(memory())} GB; at most "
            f"{most_clients(needed):,} clients fit: {way or SMALLER}"
        )


class Room(NamedTuple):
    """Bytes that a server takes at its peak, where it keeps all pairs of clients or few peers."""

    pair: int  # for each pair of clients
    entry: int  # for each entry, where few are kept
    client: float  # for each client besides
    client_of_few: float  # the same where few entries are kept


def check_room(name: str, clients: int, peers: int, room: Room, way: str) -> None:
    """Refuse more clients than the server has memory for; `way`: what to do where it keeps all
    pairs."""

    def needed(n: int) -> int:
        if are_few(peers, n):
            return int(n * (room.client_of_few + room.entry * (peers + 1)))
        return int(n * room.client + room.pair * n * n)

    check_clients(name, clients, needed, "" if are_few(peers, clients) else way)
