"""The only door to the network: takes what sites say to the server's mailbox, and nothing else.

Sites speak Flower's Fleet API over HTTPS; every request is signed by a site's key. Of Flower's
interfaces no other is served, here or anywhere: there is nothing that starts a program. A site's
question for messages is held open until there is one, so a site hears at once.

Whoever has no site's key costs little here: connections are counted as they are accepted (see
connections), the head of a request must come in seconds and prove a key (see authentication) before
any of its body is read, and a body is bounded in size and time. Whoever has one holds at most its
own share of the gate, counted by the bytes that have come, whatever it announces.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import threading
import time
from asyncio import Transport
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvicorn
from flwr.proto.fleet_pb2 import RegisterNodeFleetResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.core.errors import BadInput
from coterie.deploy.authentication import AuthenticationFailed, Member, Members, authenticate
from coterie.deploy.certificates import CERTIFICATE, KEY
from coterie.deploy.connections import Connection, ConnectionPool, listen
from coterie.deploy.logs import LogLimiter, sanitize
from coterie.deploy.mailbox import ACTIONS, Mailbox, Refused

FLEET = "/v1/fleet/"
QUESTION, ARRIVAL, REGISTRATION = "pull-messages", "activate-node", "register-node"
OBJECT = "push-object"  # the one request that holds what was made at a site
LONG_POLL_SECONDS = 10.0  # seconds a question for messages stays open
MAX_REQUEST_BYTES = 2**26  # bytes of one request; a frame is cut into pieces of 4 MB
MAX_OTHER_BYTES = 2**20  # bytes of a request without an object: a reply of 4,096 has 300 kB
MAX_HEAD_BYTES = 2**15  # bytes of the head of a request
MAX_TOTAL_BYTES = 2**29  # bytes of all requests that are being read, shared among the sites
MAX_CONCURRENT = 16  # requests of one site that are being answered
BODY_SECONDS = 120.0  # seconds for the body of a request
BACKLOG = 128  # connections that are accepted in one go
START_SECONDS = 10.0  # seconds
LogRefusal = Callable[[str], None]


class Gate:
    """A running gate; `note` hears one line for every connection or request that is refused."""

    def __init__(
        self,
        listen_on: str,
        port: int,
        mailbox: Mailbox,
        folder: Path,
        insecure: bool,
        note: LogRefusal,
        members: Members,
    ) -> None:
        self.crowd = ConnectionPool()
        self.refusals = LogLimiter(lambda line: note(f"refused: {line}"))
        self._door = _GateApp(
            mailbox, insecure, self.refusals, LogLimiter(note), members, self.crowd
        )
        config = uvicorn.Config(
            self._door,
            log_config=None,
            lifespan="on",
            ws="none",
            loop="asyncio",  # accepts connections by calling the doorway's own accept
            http=_build_protocol(self.crowd),
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            backlog=BACKLOG,
            access_log=False,
            proxy_headers=False,  # anybody can write one: who asks is whose connection it is
            timeout_graceful_shutdown=2,
            ssl_certfile=None if insecure else folder / CERTIFICATE,
            ssl_keyfile=None if insecure else folder / KEY,
        )
        config.load()
        if config.ssl:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
            config.ssl.sslobject_class = _log_handshakes(self.refusals)
        # what matters is told in our own words
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server = uvicorn.Server(config)
        try:
            self._doorway = listen(listen_on, port, self.crowd)
        except OSError as problem:
            raise BadInput(
                f"{listen_on}:{port} cannot be listened on ({problem.strerror}): another program "
                "has the port, or there is no such address"
            ) from None
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._thread.start()
        until = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise BadInput(f"the gate on {listen_on}:{port} does not start")
            time.sleep(0.02)

    def _run(self) -> None:
        self._server.run([self._doorway])

    @property
    def requests(self) -> int:
        """Requests of sites that were answered."""
        return self._door.passed

    def is_open(self) -> bool:
        """Whether sites can come in."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Let no one in any more."""
        self._door.close()
        self._server.should_exit = True
        self._thread.join(5)


def _build_protocol(crowd: ConnectionPool) -> type[asyncio.Protocol]:
    """HTTP that tells the crowd which connection it speaks on, so that it can be ended."""

    class Speaker(H11Protocol):
        def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            guest = crowd.guests.get(self.client) if self.client else None
            if guest is None:  # dropped in its handshake
                transport.abort()
            else:
                guest.transport = transport

    return Speaker


class _GateApp:
    """The ASGI application."""

    def __init__(
        self,
        mailbox: Mailbox,
        insecure: bool,
        refused: LogRefusal,
        note: LogRefusal,
        members: Members,
        crowd: ConnectionPool,
    ) -> None:
        self.mailbox, self.insecure = mailbox, insecure
        self.refused, self.note, self.members, self.crowd = refused, note, members, crowd
        self.held: Counter[str] = Counter()  # bytes of requests that have come, by key
        self.answering: Counter[str] = Counter()  # requests by key
        self.passed = 0
        self.closing = False
        self.bells: dict[int, asyncio.Event] = {}  # by node, rung when there is a question for it

    async def __call__(
        self, scope: dict, receive: Callable[[], Awaitable[dict]], send: Callable
    ) -> None:  # type: ignore[type-arg]
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))  # type: ignore[arg-type]
        except ClientDisconnect:
            return
        await response(scope, receive, send)  # type: ignore[arg-type]

    async def _lifespan(self, receive: Callable[[], Awaitable[dict]], send: Callable) -> None:  # type: ignore[type-arg]
        await receive()
        self.loop = asyncio.get_running_loop()
        self.mailbox.ring = self._ring
        watch = asyncio.create_task(self._close_expired())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watch.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    def _ring(self, node: int) -> None:
        """Wake the request of a site that waits for a question; from any thread."""
        if node in self.bells and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.bells[node].set)

    def close(self) -> None:
        """Let nobody wait any longer."""
        self.closing = True
        for node in list(self.bells):
            self._ring(node)

    async def _close_expired(self) -> None:
        """Once per second, end the connections that had their time."""
        while True:
            await asyncio.sleep(1)
            for guest in self.crowd.late(time.monotonic()):
                self.crowd.drop(guest)

    async def _answer(self, request: Request) -> Response:
        who = sanitize(request.client.host if request.client else "someone", 100)
        path = request.url.path
        action = path.removeprefix(FLEET)
        if self.insecure and path == FLEET + REGISTRATION:
            return self._register(request)
        if path != FLEET + action or action not in ACTIONS or request.method != "POST":
            asked = sanitize(f"{request.method} {path}", 100)
            self.refused(f"{who} asked for {asked}, which is not for sites")
            return _refusal_response(404)
        try:
            member = authenticate(request.headers, self.members)
        except AuthenticationFailed as stranger:
            self.refused(f"{who} {stranger.line}")
            return _refusal_response(400 if action == ARRIVAL else 401, stranger.answer)
        largest = MAX_REQUEST_BYTES if action == OBJECT else MAX_OTHER_BYTES
        if _announced_size(request) > largest:
            self.refused(f"{member.name} at {who} sent more than {largest:,} bytes at once")
            return _refusal_response(413)
        if self.answering[member.key] >= MAX_CONCURRENT:
            self.refused(f"{member.name} at {who} asked {MAX_CONCURRENT + 1} things at once")
            return _refusal_response(503)
        return await self._serve(who, action, request, member, largest)

    def _register(self, request: Request) -> Response:
        """Without keys, on this machine only: whoever comes is a site under the key it says."""
        key = request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, "")
        _, node = self.members.setdefault(key, ("", 2**32 + secrets.randbits(32)))
        return Response(RegisterNodeFleetResponse(node_id=node).SerializeToString())

    async def _serve(
        self, who: str, action: str, request: Request, member: Member, largest: int
    ) -> Response:
        """The answer to a site; meanwhile its connection is nobody's to end."""
        guest = self._find_connection(request)
        self.answering[member.key] += 1
        parts: list[bytes] = []
        try:
            await self._read_body(request, member, parts, largest)
            self.passed += 1
            if action == QUESTION:
                await self._wait_for_question(request, member.node)
            if action == ARRIVAL and self.mailbox.knows(member.node):
                self.note(f"{member.name} has started again: its old connection is dropped")
            answer = await asyncio.to_thread(
                self.mailbox.answer, action, member.node, member.name, b"".join(parts)
            )
            return Response(answer, media_type="application/protobuf")
        except TimeoutError:
            self.refused(f"{member.name} at {who} sent no whole request in {BODY_SECONDS:g} s")
            return _refusal_response(408)
        except DecodeError:
            self.refused(f"{member.name} at {who} sent what is no request of Flower's Fleet API")
            return _refusal_response(400)
        except Refused as problem:
            if problem.status != 409:  # else the server was started again, or the site
                self.refused(f"{member.name} at {who} {problem}")
            return _refusal_response(problem.status, str(problem))
        finally:
            self.held[member.key] -= sum(map(len, parts))
            self.answering[member.key] -= 1
            if guest is not None:
                guest.busy, guest.since = False, time.monotonic()

    async def _read_body(
        self, request: Request, member: Member, parts: list[bytes], largest: int
    ) -> None:
        """All of a request, while it and the site's other requests fit into the site's share;
        TimeoutError if it does not end.
        """
        share = max(MAX_REQUEST_BYTES, MAX_TOTAL_BYTES // max(1, len(self.members)))
        size = 0
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                self.held[member.key] += len(part)
                if size > largest:
                    raise Refused(413, f"sent more than {largest:,} bytes at once")
                if self.held[member.key] > share:
                    raise Refused(503, f"sent more than its share of the gate, {share:,} bytes")

    async def _wait_for_question(self, request: Request, node: int) -> None:
        """Come back when there is a question for this site, or when it has waited long enough."""
        bell = self.bells[node] = asyncio.Event()
        until = time.monotonic() + LONG_POLL_SECONDS
        while not self.closing and not self.mailbox.has_news(node):
            left = until - time.monotonic()
            if left <= 0 or await request.is_disconnected():
                return
            try:
                await asyncio.wait_for(bell.wait(), min(1.0, left))
            except TimeoutError:
                continue

    def _find_connection(self, request: Request) -> Connection | None:
        """The connection of a request that has proved itself."""
        peer = (request.client.host, request.client.port) if request.client else ("", 0)
        guest = self.crowd.guests.get(peer)
        if guest is not None:
            guest.proved = guest.busy = True
        return guest


def _announced_size(request: Request) -> int:
    """How many bytes a request says that it has; 0 where it does not say."""
    text = request.headers.get("content-length", "0")
    return (
        int(text) if text.isascii() and text.isdigit() and len(text) < 16 else MAX_REQUEST_BYTES + 1
    )


def _refusal_response(code: int, settings: str = "") -> Response:
    """A refusal, after which the connection is over: what follows is not read."""
    return Response(settings, code, {"connection": "close"}, media_type="application/json")


def _log_handshakes(refused: LogRefusal) -> type[ssl.SSLObject]:
    """TLS that tells why a handshake failed; asyncio itself keeps silent about it."""

    class Told(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as problem:
                refused(
                    f"a connection without TLS as it must be here: {_explain_tls_error(problem)}"
                )
                raise

    return Told


UNTRUSTED = "it does not trust this server's certificate (another ca.crt, or none)"


def _explain_tls_error(problem: ssl.SSLError) -> str:
    known = {
        "HTTP_REQUEST": "it spoke plaintext",
        "WRONG_VERSION_NUMBER": "it spoke plaintext or an unknown protocol",
        "TLSV1_ALERT_UNKNOWN_CA": UNTRUSTED,
        "SSLV3_ALERT_BAD_CERTIFICATE": UNTRUSTED,
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN": UNTRUSTED,
        "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says this server's certificate has expired",
    }
    return known.get(problem.reason or "", problem.reason or str(problem))
