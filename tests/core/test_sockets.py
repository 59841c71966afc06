"""A socket that listens, or one clear line."""

import errno
import socket

import pytest

from coterie.core.errors import BadInput
from coterie.core.sockets import listen


def test_a_connection_waits_in_line_from_the_first_moment():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname(), 5) as caller,
    ):
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x")
            assert caller.recv(1) == b"x"


def test_a_taken_port_is_one_clear_line():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port} of 127.0.0.1 is taken"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no host", "x" * 300])
def test_an_address_of_another_machine_is_one_clear_line(host):
    with pytest.raises(BadInput, match=r"is no address of this machine: give 127.0.0.1"):
        listen(host, 0)


def test_a_port_of_the_administrator_is_one_clear_line(monkeypatch):
    def bind(self, place):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(BadInput, match="port 80 needs an administrator"):
        listen("127.0.0.1", 80)
