"""Whether a request comes from a site: told from its head alone, before any of its body is read.

As Flower's SuperNode does, a site signs the time with its key and sends time, signature and public
key in the head of every request.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

MAX_CLOCK_SECONDS = 300.0  # by which clocks may differ, either way
MAX_CHARACTERS = 1024  # characters of any of the three words
NOT_ACTIVATED = 2004  # Flower's code of a node that is not let in; the site shows the words
Members = dict[str, tuple[str, int]]  # {public key, as requests carry it: (site, node)}


class Member(NamedTuple):
    """A site that has proved itself."""

    key: str
    name: str
    node: int


class AuthenticationFailed(Exception):
    """Why a request is not from a site: words for the server's log, and for who sent it."""

    def __init__(self, line: str, answer: str) -> None:
        super().__init__(line)
        self.line = line
        self.answer = json.dumps({"code": NOT_ACTIVATED, "detail": answer})


def authenticate(headers: Mapping[str, str], members: Members) -> Member:
    """The site that signed the head of a request."""
    key = headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, "")
    known = members.get(key)
    if known is None:
        why = "has a key that no site of this federation has"
        raise AuthenticationFailed(why, "the server does not know this key")
    name, node = known
    text, signature = headers.get(TIMESTAMP_HEADER, ""), headers.get(FLEET_HTTP_SIGNATURE_HEADER)
    if signature is None or max(len(text), len(signature)) > MAX_CHARACTERS:
        raise AuthenticationFailed(
            f"has the public key of {name}, but signs nothing", "no signature"
        )
    try:
        signed = datetime.fromisoformat(text)
        public = bytes_to_public_key(b64decode(key, validate=True))
        good = verify_signature(public, text.encode("ascii"), b64decode(signature, validate=True))
    except (ValueError, TypeError, binascii.Error):
        good = False
    if not good:
        raise AuthenticationFailed(
            f"has the public key of {name}, but not its private key", "bad signature"
        )
    _check_clock(name, signed)
    return Member(key, name, node)


def _check_clock(name: str, signed: datetime) -> None:
    """Refuse a request of another time; whose clock is wrong nobody knows, so both are told."""
    aware = signed if signed.tzinfo else signed.replace(tzinfo=UTC)
    behind = (datetime.now(UTC) - aware).total_seconds()
    if abs(behind) > MAX_CLOCK_SECONDS:
        gap = f"{abs(behind):,.0f} s {'behind' if behind > 0 else 'ahead of'} this server's"
        why = f"the clock of {name} is {gap}: set both by NTP"
        reason = f"clock skew: the site's clock is {gap}"
        raise AuthenticationFailed(why, reason)
