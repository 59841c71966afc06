"""Who may ask: one token per client, which opens that client's model only, and one for the admin.

The file that holds them can be read by its owner alone; the running service knows their digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, move_into_place, read_text

FILE = "tokens.json"
MIN_CHARACTERS = 16  # letters of a token that someone wrote by hand


class Tokens(NamedTuple):
    """Digests of the tokens that open something."""

    clients: dict[bytes, str]  # digest -> client
    admin: bytes

    def client(self, token: str) -> str | None:
        """The client that a token belongs to."""
        return self.clients.get(_hash_token(token))

    def is_admin(self, token: str) -> bool:
        """Whether a token is the admin's."""
        return secrets.compare_digest(_hash_token(token), self.admin)


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def open_tokens(path: Path, names: Sequence[str]) -> Tokens:
    """The tokens of a file; a client without one gets one, and so does a file that is not there."""
    known: dict[str, Any] = (
        _read(path) if path.exists() else {"admin": _create_token(), "clients": {}}
    )
    clients: dict[str, str] = known["clients"]
    new = [name for name in names if name not in clients]
    if new or not path.exists():
        clients |= {name: _create_token() for name in new}
        _write(path, known)
    open_to = {_hash_token(token): name for name, token in clients.items()}
    if len(open_to) < len(clients):
        raise BadInput(f"{path}: two clients have the same token: give each its own")
    return Tokens(open_to, _hash_token(known["admin"]))


def _create_token() -> str:
    return secrets.token_urlsafe(24)


def _read(path: Path) -> dict[str, Any]:
    """A file of tokens, if it is whole and closed to others."""
    if os.name != "nt" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise BadInput(f"{path} can be read by others: chmod 600 it, and change the tokens in it")
    try:
        known = json.loads(read_text(path))
        tokens = [known["admin"], *known["clients"].values()]
        good = all(isinstance(t, str) and len(t) >= MIN_CHARACTERS for t in tokens)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        if isinstance(problem, BadInput):
            raise
        good = False
    if not good:
        raise BadInput(
            f"{path} is no file of tokens (each of at least {MIN_CHARACTERS} letters): mend it, or "
            "remove it and new ones are made"
        )
    return dict(known)


def _write(path: Path, known: dict[str, Any]) -> None:
    """The file, readable by its owner alone from its first moment."""
    temporary = path.with_name(path.name + ".part")
    with catch_write_errors(path.parent):
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(known, file, indent=1)
        move_into_place(temporary, path)
