"""Whatever a server with the right certificate answers, a site neither ends nor fills its memory:
tried on a real process.
"""

import gzip
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from coterie.cli.deployment import federation
from coterie.deploy.certificates import CERTIFICATE, KEY
from coterie.deploy.processes import Child, find_program
from coterie.deploy.rehearsal import write_digits

pytestmark = pytest.mark.filterwarnings(
    "ignore:'click.utils:DeprecationWarning"
)  # of what Flower imports

PIECE = bytes(2**20)


class Answers:
    """What the server answers next: (headers, pieces of a body), by the end of a request's path."""

    def __init__(self, **bodies):
        self.bodies = bodies

    def of(self, path):
        return self.bodies.get(path.rpartition("/")[2].partition("-")[0], ({}, [b""]))


@contextmanager
def hostile_server(place, answers):
    """An HTTPS server with the keys of the deployment that answers as it likes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            headers, pieces = answers.of(self.path)
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(piece)
            except OSError:
                pass  # the site has had enough

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(place / "server" / CERTIFICATE, place / "server" / KEY)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def messages():
    """Answers to the question for messages that hold none that can be read."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse
    from flwr.proto.message_pb2 import Message, ObjectTree

    bare = PullMessagesResponse(messages_list=[Message()])
    odd = PullMessagesResponse(
        messages_list=[Message()], message_object_trees=[ObjectTree(object_id="x")]
    )
    return [bare.SerializeToString(), odd.SerializeToString()]


def peak_memory(pid):
    """MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_site_outlives_whatever_a_server_answers(tmp_path):
    write_digits(tmp_path / "rows", ["north"], rows=60)
    settings = ["--classes", "10", "--features", "64", "--model", "mlr"]
    answers = Answers()
    place = tmp_path / "f"
    make = ["init", str(place), "--sites", "north", "--address", "localhost:1", *settings]
    CliRunner().invoke(federation, make, catch_exceptions=False)
    with hostile_server(place, answers) as port:
        toml = place / "sites" / "north" / "site.toml"
        toml.write_text(toml.read_text().replace("localhost:1", f"localhost:{port}"))
        said = []
        command = [find_program("coterie"), "site", str(toml.parent), "--accept"]
        command += ["--data", str(tmp_path / "rows" / "north.csv")]
        site = Child(command, tmp_path / "north.log", said.append)

        def until(words):
            while not any(words in line for line in said):
                assert site.poll() is None, said

        try:
            until("connected to")
            before = peak_memory(site.pid)
            endless = ({}, (PIECE for _ in range(2000)))
            packed = gzip.compress(bytes(2**30))
            for body, words in (
                (({}, [b"\xff" * 40]), "cannot be read"),
                (({}, [messages()[0]]), "IndexError"),
                (({}, [messages()[1]]), "ValueError"),
                (endless, "bytes at once"),
            ):
                answers.bodies["pull"] = body
                until(words)
            answers.bodies["pull"] = ({"content-encoding": "gzip"}, [packed])
            del said[:]
            until("cannot be read")
            answers.bodies["pull"] = ({}, [b""])
            until("connected to")
            assert peak_memory(site.pid) - before < 600
            assert not any("Traceback" in line for line in said)
        finally:
            site.stop()
