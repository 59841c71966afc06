"""How many clients a server can keep: what would not fit is refused before the first round."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from coterie.core.errors import BadInput
from coterie.core.memory import format_gigabytes, read_memory_limit
from coterie.methods.peers import are_few

DEFAULT_HINT = "give fewer clients or a smaller network"
MEMORY_FRACTION = 2  # a server may take one part in so many of the machine's memory


def find_max_clients(needed: Callable[[int], int]) -> int:
    """The largest number of clients whose bytes fit."""
    low, high = 0, 1
    while needed(high) <= read_memory_limit() // MEMORY_FRACTION and high < 2**40:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        fits = needed(middle) <= read_memory_limit() // MEMORY_FRACTION
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
    if needed(clients) > read_memory_limit() // MEMORY_FRACTION:
        raise BadInput(
            f"{name} with {clients:,} clients takes {format_gigabytes(needed(clients))} GB at the "
            f"server, more than half of this machine's {format_gigabytes(read_memory_limit())} "
            "GB; at most "
            f"{find_max_clients(needed):,} clients fit: {way or DEFAULT_HINT}"
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
