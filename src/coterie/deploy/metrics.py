"""A server's health and numbers for those who watch it: /health and /metrics over HTTP.

It is plaintext and without keys, so it listens on this machine unless told otherwise. Numbers are
in the text format of Prometheus; those of the run are read from its folder at every look.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import BadInput
from coterie.deploy.replay import JOURNAL, read_exchanges
from coterie.running.progress import read_lines

MAX_CONNECTIONS = 32  # connections at once
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """One number that a server tells."""

    name: str
    kind: str  # counter or gauge
    meaning: str
    value: float


HealthCheck = Callable[[], tuple[Mapping[str, bool], list[Metric]]]  # what is up, and the numbers


def collect_run_metrics(folder: Path) -> list[Metric]:
    """The numbers of a run's folder, which may not be there yet."""
    written = read_exchanges(folder) if (folder / JOURNAL).exists() else []
    exchanges = [line for line in written if "came" not in line]
    rounds = read_lines(folder) if folder.is_dir() else []
    found = [
        Metric("rounds_done", "gauge", "Rounds that are done.", len(rounds)),
        Metric("exchanges_total", "counter", "Exchanges with the sites.", len(exchanges)),
    ]
    if exchanges:
        last = exchanges[-1]
        found += [
            Metric("sites_asked", "gauge", "Sites of the last exchange.", len(last["asked"])),
            Metric("sites_answered", "gauge", "Those who answered.", len(last["answered"])),
            Metric("exchange_seconds", "gauge", "Seconds of the last exchange.", last["seconds"]),
            Metric("exchange_time", "gauge", "When it ended, Unix time.", last["time"]),
        ]
    for score in ("accuracy", "loss"):
        values = [line[score] for line in rounds if line.get(score) is not None]
        if values:
            found.append(Metric(score, "gauge", f"Mean {score} of the sites.", values[-1]))
    return found


def render_metrics(numbers: list[Metric]) -> str:
    """Numbers as Prometheus reads them."""
    return "".join(
        f"# HELP coterie_{n.name} {n.meaning}\n# TYPE coterie_{n.name} {n.kind}\n"
        f"coterie_{n.name} {float(n.value)!r}\n"
        for n in numbers
    )


class _SmallServer(ThreadingHTTPServer):
    """Has so many connections at once, and ends the oldest for one more: each is a file of this
    process, which the gate and the run need too.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock, self._connected = threading.Lock(), list[Any]()  # oldest first
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock, suppress(OSError):
            self._connected.append(request)
            if len(self._connected) > MAX_CONNECTIONS:
                self._connected.pop(0).shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, suppress(ValueError):
            self._connected.remove(request)
        super().shutdown_request(request)


class MetricsServer:
    """A running service of health and numbers."""

    def __init__(self, host: str, port: int, look: HealthCheck) -> None:
        try:
            self._server = _SmallServer((host, port), _build_handler(look))
        except OSError as problem:
            raise BadInput(
                f"--metrics-port {port} on {host} cannot be used: {problem.strerror}"
            ) from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Tell no more."""
        self._server.shutdown()
        self._server.server_close()


def _build_handler(look: HealthCheck) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for who says nothing

        def do_GET(self) -> None:
            up, numbers = look()
            if self.path == "/metrics":
                self._send(200, CONTENT_TYPE, render_metrics(numbers))
            elif self.path == "/health":
                good = all(up.values())
                settings = {"healthy": good, **up}
                self._send(200 if good else 503, "application/json", json.dumps(settings))
            else:
                self._send(404, CONTENT_TYPE, "there are /health and /metrics\n")

        def _send(self, code: int, kind: str, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *given: Any) -> None:
            return  # who looks every few seconds is no news

    return Handler
