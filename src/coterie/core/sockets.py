"""A socket that listens, or one clear line why it cannot."""

from __future__ import annotations

import errno
import os
import socket

from coterie.core.errors import BadInput

MAX_WAITING = 1024  # connections that may wait in line


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; what comes from now on waits in line."""
    way = "give 127.0.0.1, 0.0.0.0 or one of its own"
    try:
        family, *_, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise BadInput(f"--host {host} is no address of this machine: {way}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":  # there it would share a taken port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(MAX_WAITING)
    except OSError as problem:
        listener.close()
        raise BadInput(_explain_error(host, port, problem, way)) from None
    return listener


def _explain_error(host: str, port: int, problem: OSError, way: str) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: give another --port, or --port 0 for a free one"
    if problem.errno == errno.EACCES:
        return f"port {port} needs an administrator: give one of 1024 or more"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine: {way}"
    return f"--host {host} --port {port}: {problem.strerror}: {way}"
