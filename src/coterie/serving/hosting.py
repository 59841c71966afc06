"""Serving a run over HTTP until it is stopped."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.sockets import listen
from coterie.core.task import find_task
from coterie.serving.service import Service, ServiceLimits, default_token_file


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def serve(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 8766,
    tokens: Path | None = None,  # None: tokens.json in the folder
    open_to_all: bool = False,  # without tokens, on this machine alone
    watch: float = 0.0,
    limits: ServiceLimits = ServiceLimits(),  # noqa: B008  # a tuple does not change
    build: Callable[[], Any] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the models of a run until the process is stopped; see docs/serving.md."""
    try:
        import uvicorn

        from coterie.serving.app import build_app as build_app
        from coterie.serving.http_protocol import PatientProtocol
    except ImportError:
        raise BadInput(
            "serving needs starlette and uvicorn: pip install 'coterie[serve]'"
        ) from None
    if open_to_all and not is_loopback(host):
        raise BadInput(f"--no-tokens on {host} would open every model to the network: use tokens")
    if open_to_all and tokens is not None:
        raise BadInput("--no-tokens leaves no use for --tokens: give one of them")
    file = None if open_to_all else tokens or default_token_file(folder)
    service = Service(folder, file, limits, build)
    listener = listen(host, port)
    address = f"http://{_display_host(host)}:{listener.getsockname()[1]}"
    clients = service.served.models.names
    say(f"{len(clients):,} models of {folder}: {address}")
    if file is not None:
        say(f"tokens, one per client and the admin's: {file} (only you can read it)")
    language = find_task(service.served.task.kind).has_tokens
    what = 'generate with {"prompt": "..."}' if language else 'predict with {"rows": [...]}'
    say(f"ask: POST {address}/clients/CLIENT/{what}; see {address}/")
    if not is_loopback(host):
        say("what is sent is not encrypted: put a TLS proxy before it")
    say("Ctrl-C stops it, SIGHUP reads the run again")
    config = uvicorn.Config(
        build_app(service, watch, is_loopback(host)),
        http=PatientProtocol,
        log_level="warning",
        access_log=False,  # it would show who asks
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=10,
    )
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        say("stopped")


def _display_host(host: str) -> str:
    bare = host.strip("[]")
    bare = socket.gethostname() if bare in ("0.0.0.0", "::", "") else bare
    return f"[{bare}]" if ":" in bare else bare
