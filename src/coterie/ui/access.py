"""Who may ask: under a name this server has, with the token where there is one; and headers for
every answer.

To read is GET. To change anything is POST: with the token in any case, from this server's own
pages, as JSON, and short.
"""

from __future__ import annotations

import hashlib
import secrets
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from coterie.ui.uploads import MAX_UPLOAD

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
OWN_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
    "data: blob:; connect-src 'self'"
)
POLICY_END = "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
MAX_BODY = 2**16  # bytes of what a page may send
UPLOAD = "/api/upload"  # where a table is sent, as it is, and may be longer
JSON = "application/json"
MAY_WRITE = "coterie.may_write"  # in a request's scope: whether it showed the token
HEADERS = {
    "Content-Security-Policy": OWN_POLICY + POLICY_END,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # an address may hold the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessMiddleware:
    """Stands before the app; what it refuses never reaches a route."""

    def __init__(
        self,
        app: Any,
        host: str = "127.0.0.1",
        token: str = "",
        cookie: str = "coterie",
        open_to_read: bool = False,
    ):
        self.app, self.token, self.cookie = app, token.encode(), cookie
        self.open_to_read = open_to_read  # the token is asked only of who changes something
        literal = f"[{host}]" if ":" in host and not host.startswith("[") else host
        # a page of another name that resolves to this machine is turned away; elsewhere the token
        # does that
        self.hosts = {*LOOPBACK, literal.lower()} if is_loopback(host) else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refuse(scope) or self.app)(scope, receive, guarded)

    def _refuse(self, scope: Any) -> Response | None:
        """The answer to a request that goes no further."""
        headers = Headers(scope=scope)
        reads = scope["method"] in ("GET", "HEAD")
        if not reads and (scope["method"] != "POST" or not self.token):
            return _text_response(
                "coterie ui only shows: ask with GET", 405, {"Allow": "GET, HEAD"}
            )
        names = headers.getlist("host")
        if self.hosts is not None and (len(names) != 1 or _strip_port(names[0]) not in self.hosts):
            return _text_response(
                "coterie ui answers to 127.0.0.1 and localhost only; --host and --token open it "
                "to others",
                421,
            )
        if reads and (fresh := self._set_cookie(scope)):
            return fresh
        bearer = self._has_bearer(headers)
        scope[MAY_WRITE] = bool(self.token) and (bearer or self._has_ticket(headers))
        if not self.token or scope[MAY_WRITE] or (reads and self.open_to_read):
            return None if reads else _reject_change(headers, bearer, scope["path"] == UPLOAD)
        return _text_response(
            "open the address that coterie ui printed, with its ?token=",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _set_cookie(self, scope: Any) -> Response | None:
        """The answer to an address with a token: the same one without it, and a cookie."""
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in asked if name == "token"]
        if not given or not self.token:
            return None
        if not self._is_token(given[0]):
            return _text_response("this is not the token that coterie ui printed", 401)
        rest = urlencode([(name, value) for name, value in asked if name != "token"])
        path = "/" + scope["path"].lstrip("/")  # never //host
        clean = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        clean.set_cookie(self.cookie, self._cookie_value(), httponly=True, samesite="strict")
        return clean

    def _has_bearer(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        return bool(self.token) and kind.lower() == "bearer" and self._is_token(given.strip())

    def _has_ticket(self, headers: Headers) -> bool:
        return secrets.compare_digest(self._sent_cookie(headers), self._cookie_value().encode())

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "surrogateescape"), self.token)

    def _cookie_value(self) -> str:
        """What the cookie holds: not the token itself."""
        return hashlib.blake2b(self.token, digest_size=16, person=b"coterie ui").hexdigest()

    def _sent_cookie(self, headers: Headers) -> bytes:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            found = None
        return found.value.encode("utf-8", "replace") if found else b""


def _strip_port(host: str) -> str:
    """A Host header without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _reject_change(headers: Headers, bearer: bool, upload: bool = False) -> Response | None:
    """The answer to a change that is not sent by a page of this server, or too long.

    A script that shows the token itself needs no page; a cookie goes along with whatever a
    browser sends, so the browser must say that one of these pages sent it.
    """
    origin, host = headers.get("origin", ""), headers.get("host", "")
    own = headers.getlist("origin") in ([f"http://{host}"], [f"https://{host}"]) and bool(host)
    if (origin or not bearer) and not own:
        return _text_response("only the pages of this coterie ui may change anything", 403)
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return _text_response("only the pages of this coterie ui may change anything", 403)
    kind, most = ("application/octet-stream", MAX_UPLOAD) if upload else (JSON, MAX_BODY)
    if headers.get("content-type", "").partition(";")[0].strip() != kind:
        return _text_response(f"send it as {kind}", 415)
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return _text_response("say how long it is: Content-Length", 411)
    if len(length) > 9 or int(length) > most:
        return _text_response(f"at most {most:,} bytes are taken", 413)
    return None


def _text_response(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text + "\n", status, headers)
