"""A message on a site's Unix socket: a version, a head (JSON text) and a body (bytes of arrays),
each after its length.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

MAGIC = b"coterie\n"
SIZES = struct.Struct("<8sIQQ")  # magic, schema, bytes of head, bytes of body
LARGEST_HEAD = 2**26
LARGEST_BODY = 2**33
PIECE = 2**20


class Frame(NamedTuple):
    """What travels between a server and a site, whichever way."""

    schema: int  # of the head and the body; each side refuses another than its own
    head: str  # JSON
    body: bytes


class BadFrame(Exception):
    """The other side of the socket went away, or does not speak as we do."""


def send(connection: socket.socket, frame: Frame) -> None:
    """Write one frame."""
    head = frame.head.encode()
    check_sizes(len(head), len(frame.body))
    connection.sendall(SIZES.pack(MAGIC, frame.schema, len(head), len(frame.body)) + head)
    if frame.body:  # the other side may have read all there is, answered and gone
        connection.sendall(frame.body)


def receive(connection: socket.socket) -> Frame:
    """Read one frame."""
    magic, schema, head, body = SIZES.unpack(_read(connection, SIZES.size))
    if magic != MAGIC:
        raise BadFrame("what came over the socket is no message of coterie")
    check_sizes(head, body)
    return Frame(schema, _read(connection, head).decode(), _read(connection, body))


def check_sizes(head: int, body: int) -> None:
    """Refuse a message that nobody of ours would send."""
    if head > LARGEST_HEAD or body > LARGEST_BODY:
        raise BadFrame(
            f"a message of {head + body:,} bytes is too large: at most {LARGEST_HEAD:,} of head, "
            f"{LARGEST_BODY:,} of body"
        )


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(PIECE, count - len(data)))
        if not piece:
            raise BadFrame("the connection ended in the middle of a message")
        data += piece
    return bytes(data)
