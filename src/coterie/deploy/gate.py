"""The only door to the network: passes on what sites say to SuperLink, and nothing else.

SuperLink has one port for everything, and in its free edition whoever reaches that port may also
start programs and register keys. So SuperLink listens on this machine only, and sites meet this
gate: it lets through the paths of Flower's Fleet API, whose every request is signed by a site's
key. It also holds a site's question for messages open until there is one, so a site that asks every
three seconds hears at once; and it lets a site that was killed and started again in at once, where
SuperLink would wait until it has missed the old one for a minute.

Whoever has no site's key costs little here: connections are counted as they are accepted (see
crowd), the head of a request must come in seconds and prove a key (see passes) before any of its
body is read, and a body is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from asyncio import Transport
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import DeactivateNodeRequest, PushMessagesRequest
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.core.errors import BadInput
from coterie.deploy.authentication import AuthenticationFailed, Member, Members, authenticate
from coterie.deploy.certificates import CA, CERTIFICATE, KEY
from coterie.deploy.connections import Connection, ConnectionPool, listen
from coterie.deploy.logs import LogLimiter, sanitize

FLEET = "/v1/fleet/"
QUESTION, REPLY, ARRIVAL, LEAVING = (
    FLEET + "pull-messages",
    FLEET + "push-messages",
    FLEET + "activate-node",
    FLEET + "deactivate-node",
)
LONG_POLL_SECONDS = 10.0  # seconds a question for messages stays open; SuperNode gives up after 30
POLL_SECONDS = 0.3  # seconds between two looks for a message, when few are waiting
MAX_POLLS_PER_SECOND = 10.0  # looks per second at most, however many are waiting
MAX_REQUEST_BYTES = 2**26  # bytes of one request; Flower cuts arrays into pieces of 5 MB
MAX_HEAD_BYTES = 2**15  # bytes of the head of a request
MAX_TOTAL_BYTES = 2**29  # bytes of all requests that are being read or passed on
MAX_CONCURRENT = 16  # requests of one site that are being answered
BODY_SECONDS = 120.0  # seconds for the body of a request
BACKLOG = 128  # connections that are accepted in one go
OWN_HEADERS = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "content-encoding",
}
START_SECONDS = 10.0  # seconds
NOBODY = Member("", "this machine", 0)  # whoever comes without keys, on this machine only
LogRefusal = Callable[[str], None]


class Gate:
    """A running gate; `note` hears one line for every connection or request that is refused."""

    def __init__(
        self,
        listen_on: str,
        port: int,
        superlink: str,
        folder: Path,
        insecure: bool,
        note: LogRefusal,
        members: Members,
    ) -> None:
        self.crowd = ConnectionPool()
        self.refusals = LogLimiter(lambda line: note(f"refused: {line}"))
        self._door = _GateApp(
            superlink, str(folder / CA), insecure, self.refusals, note, members, self.crowd
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
        """Requests of sites that were passed on."""
        return self._door.passed

    def close(self) -> None:
        """Let no one in any more."""
        self._door.closing = True
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
        superlink: str,
        authority: str,
        insecure: bool,
        refused: LogRefusal,
        note: LogRefusal,
        members: Members,
        crowd: ConnectionPool,
    ) -> None:
        self.base = f"{'http' if insecure else 'https'}://{superlink}"
        self.trust: bool | ssl.SSLContext = (
            False if insecure else ssl.create_default_context(cafile=authority)
        )
        self.insecure = insecure
        self.refused, self.note, self.members, self.crowd = refused, note, members, crowd
        self.waiting = 0
        self.held = 0  # bytes of requests that are being read or passed on
        self.answering: Counter[str] = Counter()  # requests by key
        self.passed = 0
        self.closing = False

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
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        watch = asyncio.create_task(self._close_expired())
        async with httpx.AsyncClient(
            verify=self.trust, timeout=60, limits=limits, trust_env=False
        ) as self.client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        watch.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _close_expired(self) -> None:
        """Once per second, end the connections that had their time."""
        while True:
            await asyncio.sleep(1)
            for guest in self.crowd.late(time.monotonic()):
                self.crowd.drop(guest)

    async def _answer(self, request: Request) -> Response:
        who = sanitize(request.client.host if request.client else "someone", 100)
        path = request.url.path
        if not path.startswith(FLEET) or ".." in path or request.method != "POST":
            asked = sanitize(f"{request.method} {path}", 100)
            self.refused(f"{who} asked for {asked}, which is not for sites")
            return _refusal_response(404)
        try:
            member = NOBODY if self.insecure else authenticate(request.headers, self.members)
        except AuthenticationFailed as stranger:
            self.refused(f"{who} {stranger.line}")
            return _refusal_response(400 if path == ARRIVAL else 401, stranger.answer)
        size = _announced_size(request)
        if size > MAX_REQUEST_BYTES:
            self.refused(
                f"{member.name} at {who} sent more than {MAX_REQUEST_BYTES:,} bytes at once"
            )
            return _refusal_response(413)
        if self.answering[member.key] >= MAX_CONCURRENT and not self.insecure:
            self.refused(f"{member.name} at {who} asked {MAX_CONCURRENT + 1} things at once")
            return _refusal_response(503)
        if self.held + size > MAX_TOTAL_BYTES:
            self.refused(f"{member.name} at {who} has to wait: the gate is full of uploads")
            return _refusal_response(503)
        return await self._serve(who, path, request, member, size)

    async def _serve(
        self, who: str, path: str, request: Request, member: Member, size: int
    ) -> Response:
        """The answer to a site; meanwhile its connection is nobody's to end."""
        guest = self._find_connection(request)
        self.held += size
        self.answering[member.key] += 1
        try:
            body = await _read_body(request, size)
            if body is None:
                self.refused(f"{member.name} at {who} sent more than it announced")
                return _refusal_response(413)
            if path == REPLY and not self.insecure and not _is_own_reply(body, member.node):
                self.refused(f"{member.name} at {who} answered in the name of another site")
                return _refusal_response(403)
            self.passed += 1
            answer = await self._ask(path, request, body)
            if path == ARRIVAL and answer.status_code >= 400 and answer.status_code != 503:
                answer = await self._arrive(member, request, body, answer)
            return Response(answer.content, answer.status_code, _forward_headers(answer.headers))
        except TimeoutError:
            self.refused(f"{member.name} at {who} sent no whole request in {BODY_SECONDS:g} s")
            return _refusal_response(408)
        finally:
            self.held -= size
            self.answering[member.key] -= 1
            if guest is not None:
                guest.busy, guest.since = False, time.monotonic()

    def _find_connection(self, request: Request) -> Connection | None:
        """The connection of a request that has proved itself."""
        peer = (request.client.host, request.client.port) if request.client else ("", 0)
        guest = self.crowd.guests.get(peer)
        if guest is not None:
            guest.proved = guest.busy = True
        return guest

    async def _arrive(
        self, member: Member, request: Request, body: bytes, answer: httpx.Response
    ) -> httpx.Response:
        """SuperLink does not let this site in: it still takes the site's old self for alive."""
        if self.insecure:
            return answer
        # signed as the arrival is
        gone = DeactivateNodeRequest(node_id=member.node).SerializeToString()
        await self._ask(LEAVING, request, gone)
        answer = await self._ask(ARRIVAL, request, body)
        if answer.status_code < 400:
            self.note(f"{member.name} has started again: its old connection is dropped")
            return answer
        return httpx.Response(503)  # it is one of ours: let it try again

    async def _ask(self, path: str, request: Request, body: bytes) -> httpx.Response:
        """SuperLink's answer; where it has no message yet, the one it has a little later."""
        until = time.monotonic() + LONG_POLL_SECONDS
        self.waiting += 1
        try:
            while True:
                try:
                    answer = await self.client.post(
                        self.base + path, content=body, headers=_forward_headers(request.headers)
                    )
                except httpx.TransportError:
                    return httpx.Response(503)  # SuperLink is away for a moment; sites try again
                empty = path == QUESTION and answer.status_code == 200 and not answer.content
                if not empty or self.closing or time.monotonic() > until:
                    return answer
                await asyncio.sleep(max(POLL_SECONDS, self.waiting / MAX_POLLS_PER_SECOND))
                if (
                    await request.is_disconnected()
                ):  # whoever gets a message must still be there to take it
                    return answer
        finally:
            self.waiting -= 1


def _announced_size(request: Request) -> int:
    """How many bytes a request may have: what it announces, else the most there may be."""
    text = request.headers.get("content-length")
    if text is None:
        return MAX_REQUEST_BYTES if "transfer-encoding" in request.headers else 0
    return (
        int(text) if text.isascii() and text.isdigit() and len(text) < 16 else MAX_REQUEST_BYTES + 1
    )


async def _read_body(request: Request, largest: int) -> bytes | None:
    """All of a request, if it is no larger than it may be; TimeoutError if it does not end."""
    parts, size = [], 0
    async with asyncio.timeout(BODY_SECONDS):
        async for part in request.stream():
            size += len(part)
            if size > largest:
                return None
            parts.append(part)
    return b"".join(parts)


def _refusal_response(code: int, words: str = "") -> Response:
    """A refusal, after which the connection is over: what follows is not read."""
    return Response(words, code, {"connection": "close"}, media_type="application/json")


def _is_own_reply(body: bytes, node: int) -> bool:
    """Whether all replies of a request say that they are of this node; SuperLink asks whose request
    it is, not whose replies are in it.
    """
    try:
        replies = PushMessagesRequest.FromString(body).messages_list
    except DecodeError:
        return True  # SuperLink cannot read it either
    return all(reply.metadata.src_node_id == node for reply in replies)


def _forward_headers(headers: object) -> dict[str, str]:
    return {k: v for k, v in headers.items() if k.lower() not in OWN_HEADERS}  # type: ignore[attr-defined]


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
