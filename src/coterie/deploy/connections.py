"""The connections at a server's gate: counted as they are accepted, so that nobody fills it up.

Where an address has all the connections it may have, or the gate as a whole has, the oldest one
that has not proved itself goes and the new one comes in. So a site that proves itself at once
comes through, however many others hold connections open and say nothing. Who has not sent the head
of a request after a few seconds goes too, whether it stopped in the TLS handshake or later.
"""

from __future__ import annotations

import socket
import time
from asyncio import Transport
from collections import Counter
from contextlib import suppress
from typing import Any

MAX_PER_ADDRESS = 64  # connections of one address; sites may share one
MAX_CONNECTIONS = 384  # of all; systems give a process 1,024 files
PROOF_SECONDS = 10.0  # seconds to prove oneself: TLS handshake and the head of a request
IDLE_SECONDS = (
    120.0  # seconds between two requests of who has: a slow line may still take the answer
)
Peer = tuple[str, int]


class Connection(socket.socket):
    """One accepted connection, which the crowd forgets when it is closed."""

    crowd: ConnectionPool
    peer: Peer
    since: float  # when it came, or when its last request was answered
    proved = False  # sent a request that a site's key has signed
    busy = False  # such a request is being answered
    transport: Transport | None = None  # what asyncio made of it, once TLS stands

    def close(self) -> None:
        """Also said to the crowd."""
        self.crowd.leave(self)
        super().close()

    def drop(self) -> None:
        """End the connection, whatever state it is in."""
        self.crowd.leave(self)
        if self.transport is not None:
            self.transport.abort()
        else:  # asyncio is in the handshake: it sees the end and closes
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)


class ConnectionPool:
    """Everyone who is connected."""

    def __init__(self, total: int = MAX_CONNECTIONS, per_address: int = MAX_PER_ADDRESS) -> None:
        self.total, self.per_address = total, per_address
        self.guests: dict[Peer, Connection] = {}  # oldest first
        self._by_address: Counter[str] = Counter()
        self.dropped = 0

    def enter(self, guest: Connection) -> bool:
        """Let one more in, in the place of another where it is full; False: there is no place."""
        host = guest.peer[0]
        if self._by_address[host] >= self.per_address and not self._evict(host):
            return False
        if len(self.guests) >= self.total and not self._evict(self._busiest_address()):
            return False
        self.guests[guest.peer] = guest
        self._by_address[host] += 1
        return True

    def leave(self, guest: Connection) -> None:
        """Forget one that has gone."""
        if self.guests.get(guest.peer) is guest:
            del self.guests[guest.peer]
            self._by_address[guest.peer[0]] -= 1
            if not self._by_address[guest.peer[0]]:
                del self._by_address[guest.peer[0]]

    def late(self, now: float) -> list[Connection]:
        """Those who had their time."""
        return [
            g
            for g in self.guests.values()
            if not g.busy and now - g.since > (IDLE_SECONDS if g.proved else PROOF_SECONDS)
        ]

    def drop(self, guest: Connection) -> None:
        """End a connection for the others' sake."""
        self.dropped += 1
        guest.drop()

    def _busiest_address(self) -> str:
        """The address with most connections that may be ended."""
        idle = Counter(g.peer[0] for g in self.guests.values() if not g.busy)
        return idle.most_common(1)[0][0] if idle else ""

    def _evict(self, host: str) -> bool:
        idle = [g for g in self.guests.values() if g.peer[0] == host and not g.busy]
        for guest in sorted(idle, key=lambda g: g.proved)[:1]:  # the oldest stranger, else site
            self.drop(guest)
        return bool(idle)


class Listener(socket.socket):
    """A listening socket that lets connections in as the crowd allows."""

    crowd: ConnectionPool

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that has a place; BlockingIOError where nobody is left."""
        while True:
            taken, address = super().accept()
            guest = Connection(fileno=taken.detach())
            guest.crowd, guest.since = self.crowd, time.monotonic()
            guest.peer = (str(address[0]), int(address[1]))
            if self.crowd.enter(guest):
                return guest, address
            guest.close()


def listen(host: str, port: int, crowd: ConnectionPool) -> Listener:
    """A socket on this address; OSError where it is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    door = Listener(family, kind, protocol)
    door.crowd = crowd
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        door.bind(address)
    except OSError:
        door.close()
        raise
    return door
