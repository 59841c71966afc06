"""The only door to the network: passes on what sites say to SuperLink, and nothing else.

SuperLink has one port for everything, and in its free edition whoever reaches that port may also
start programs and register keys. So SuperLink listens on this machine only, and sites meet this
gate: it lets through the paths of Flower's Fleet API, whose every request is signed by a site's
key. It also holds a site's question for messages open until there is one, so a site that asks every
three seconds hears at once; and it lets a site that was killed and started again in at once, where
SuperLink would wait until it has missed the old one for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from coterie.core.errors import BadInput
from coterie.deploy.certificates import CA, CERTIFICATE, KEY

FLEET = "/v1/fleet/"
QUESTION, ARRIVAL, LEAVING = (
    FLEET + "pull-messages",
    FLEET + "activate-node",
    FLEET + "deactivate-node",
)
HELD = 10.0  # seconds a question for messages stays open; SuperNode gives up after 30
PAUSE = 0.3  # seconds between two looks for a message, when few are waiting
LOOKS = 10.0  # looks a second at most, however many are waiting
LARGEST = 2**28  # bytes of one request; Flower cuts arrays into pieces far smaller
OWN_HEADERS = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "content-encoding",
}
QUIET = 60.0  # seconds before the same refusal is told again
STARTING = 10.0  # seconds
Note = Callable[[str], None]
Members = dict[str, tuple[str, int]]  # {public key, as requests carry it: (site, node)}


class Gate:
    """A running gate; `note` hears one line for every connection or request that is refused."""

    def __init__(
        self,
        listen: str,
        port: int,
        superlink: str,
        folder: Path,
        insecure: bool,
        note: Note,
        members: Members,
    ) -> None:
        self._told: dict[str, float] = {}
        self._note = note
        self._door = _Door(superlink, str(folder / CA), insecure, self._refused, note, members)
        config = uvicorn.Config(
            self._door,
            listen,
            port,
            log_config=None,
            lifespan="on",
            ws="none",
            access_log=False,
            timeout_graceful_shutdown=2,
            ssl_certfile=None if insecure else folder / CERTIFICATE,
            ssl_keyfile=None if insecure else folder / KEY,
        )
        config.load()
        if config.ssl:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
            config.ssl.sslobject_class = _handshakes(self._refused)
        logging.getLogger("uvicorn.error").setLevel(
            logging.CRITICAL
        )  # what matters is told in our own words
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()
        until = time.monotonic() + STARTING
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise BadInput(
                    f"{listen}:{port} cannot be listened on: another program has the port, or "
                    "there is no such address"
                )
            time.sleep(0.02)

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # uvicorn's way to say that the port is taken
            return

    def _refused(self, line: str) -> None:
        """Tell of a refusal, but not of the same one again and again."""
        now = time.monotonic()
        if now - self._told.get(line, -QUIET) >= QUIET:
            self._told[line] = now
            self._note(f"refused: {line}")

    def close(self) -> None:
        """Let no one in any more."""
        self._door.closing = True
        self._server.should_exit = True
        self._thread.join(5)


class _Door:
    """The ASGI application."""

    def __init__(
        self,
        superlink: str,
        authority: str,
        insecure: bool,
        refused: Note,
        note: Note,
        members: Members,
    ) -> None:
        self.base = f"{'http' if insecure else 'https'}://{superlink}"
        self.trust: bool | ssl.SSLContext = (
            False if insecure else ssl.create_default_context(cafile=authority)
        )
        self.refused, self.note, self.members = refused, note, members
        self.waiting = 0
        self.closing = False

    async def __call__(
        self, scope: dict, receive: Callable[[], Awaitable[dict]], send: Callable
    ) -> None:  # type: ignore[type-arg]
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))  # type: ignore[arg-type]
        except ClientDisconnect:
            return
        await response(scope, receive, send)  # type: ignore[arg-type]

    async def _live(self, receive: Callable[[], Awaitable[dict]], send: Callable) -> None:  # type: ignore[type-arg]
        await receive()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        async with httpx.AsyncClient(
            verify=self.trust, timeout=60, limits=limits, trust_env=False
        ) as self.client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, request: Request) -> Response:
        who = request.client.host if request.client else "someone"
        path = request.url.path
        if not path.startswith(FLEET) or ".." in path or request.method != "POST":
            self.refused(f"{who} asked for {request.method} {path[:100]}, which is not for sites")
            return Response(status_code=404)
        body = await _body(request)
        if body is None:
            self.refused(f"{who} sent more than {LARGEST:,} bytes at once")
            return Response(status_code=413)
        answer = await self._ask(path, request, body)
        if path == ARRIVAL and answer.status_code >= 400 and answer.status_code != 503:
            answer = await self._arrive(who, request, body, answer)
        return Response(answer.content, answer.status_code, _kept(answer.headers))

    async def _arrive(
        self, who: str, request: Request, body: bytes, answer: httpx.Response
    ) -> httpx.Response:
        """SuperLink does not let this one in: a stranger, or a site whose old self it still takes
        for alive.
        """
        known = self.members.get(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""))
        if known is None:
            self.refused(f"{who} has a key that no site of this federation has")
            return answer
        name, node = known
        await self._ask(
            LEAVING, request, DeactivateNodeRequest(node_id=node).SerializeToString()
        )  # signed as the arrival is
        answer = await self._ask(ARRIVAL, request, body)
        if answer.status_code < 400:
            self.note(f"{name} has started again: its old connection is dropped")
            return answer
        return httpx.Response(503)  # it is one of ours: let it try again

    async def _ask(self, path: str, request: Request, body: bytes) -> httpx.Response:
        """SuperLink's answer; where it has no message yet, the one it has a little later."""
        until = time.monotonic() + HELD
        self.waiting += 1
        try:
            while True:
                try:
                    answer = await self.client.post(
                        self.base + path, content=body, headers=_kept(request.headers)
                    )
                except httpx.TransportError:
                    return httpx.Response(503)  # SuperLink is away for a moment; sites try again
                empty = path == QUESTION and answer.status_code == 200 and not answer.content
                if not empty or self.closing or time.monotonic() > until:
                    return answer
                await asyncio.sleep(max(PAUSE, self.waiting / LOOKS))
                if (
                    await request.is_disconnected()
                ):  # whoever gets a message must still be there to take it
                    return answer
        finally:
            self.waiting -= 1


async def _body(request: Request) -> bytes | None:
    """All of a request, if it is no larger than it may be."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            return None
        parts.append(part)
    return b"".join(parts)


def _kept(headers: object) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in OWN_HEADERS}  # type: ignore[attr-defined]


def _handshakes(refused: Note) -> type[ssl.SSLObject]:
    """TLS that tells why a handshake failed; asyncio itself keeps silent about it."""

    class Told(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as problem:
                refused(f"a connection without TLS as it must be here: {_reason(problem)}")
                raise

    return Told


UNTRUSTED = "it does not trust this server's certificate (another ca.crt, or none)"


def _reason(problem: ssl.SSLError) -> str:
    known = {
        "HTTP_REQUEST": "it spoke plaintext",
        "WRONG_VERSION_NUMBER": "it spoke plaintext or an unknown protocol",
        "TLSV1_ALERT_UNKNOWN_CA": UNTRUSTED,
        "SSLV3_ALERT_BAD_CERTIFICATE": UNTRUSTED,
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": UNTRUSTED,
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says this server's certificate has expired",
    }
    return known.get(problem.reason or "", problem.reason or str(problem))
