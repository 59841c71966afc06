"""A site's side of a secure sum (see secure_sum): its upload stays at home, what leaves is masked.

After training the site sends public keys in place of its upload. Then the server asks three more
times: for shares of the site's secrets, for the masked upload, for the shares that take masks off
the sum. Each is answered once, in this order, with secrets that live in this process only; a new
question for the upload begins again with fresh ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Tree
from coterie.deploy import wire
from coterie.deploy.config_files import FEWEST_SUMMED
from coterie.deploy.disclosure import Refusal, refusing
from coterie.deploy.frames import Frame
from coterie.deploy.secure_sum import (
    Keys,
    PublicKeys,
    make_keys,
    make_shares,
    mask_vector,
    publish_keys,
    read_shares,
    reveal_shares,
    to_integers,
)
from coterie.deploy.wire import Head

SHARES, MASKED, REVEAL = "shares", "masked", "reveal"
STEPS = (SHARES, MASKED, REVEAL)
Bind = Callable[[str, str, str, Sequence[int], int], None]  # see AnswerBook.reveal


class Session(NamedTuple):
    """The secure sum that this site takes part in."""

    run: str
    token: str
    question: str
    upload: np.ndarray  # [n], all its numbers
    keys: Keys
    step: str = SHARES  # what may be asked next
    me: int = 0
    peers: Mapping[int, PublicKeys] = {}
    context: bytes = b""
    own: bytes = b""  # this site's share of its own secrets
    held: Mapping[int, tuple[int, int]] = {}
    weight: int = 0


class Masker:
    """Masks a site's uploads; `bind` refuses a second, different sum of one upload."""

    def __init__(self, bind: Bind) -> None:
        self._bind = bind
        self._session: Session | None = None

    def begin(self, reply: Frame, run: str, token: str, question: str) -> Frame:
        """The reply to a question of training with public keys in place of its upload."""
        upload = flatten_upload(wire.unpack(reply).tree())
        if not len(upload):
            return reply
        session = Session(run, token, question, upload, make_keys())
        self._session = session
        head = json.loads(reply.head)
        kept = {option: head[option] for option in ("error", "token", "effort", "notes")}
        return wire.pack({**kept, "keys": write_keys(publish_keys(session.keys))})

    def answer(self, kind: str, head: Head, run: str, token: str, number: int, rows: int) -> Frame:
        """The reply to one of the three questions of a secure sum."""
        session = self._session
        if session is None or (session.run, session.token, session.step) != (run, token, kind):
            raise Refusal("no such step of a secure sum is under way here: begin it again")
        self._session = None  # each step is answered once, and nothing follows a failure
        work = {SHARES: self._share, MASKED: self._mask, REVEAL: self._reveal}[kind]
        with refusing():
            after, reply = work(session, head, number, rows)
        self._session = after
        return reply

    def _share(
        self, session: Session, head: Head, number: int, rows: int
    ) -> tuple[Session | None, Frame]:
        peers = {i: read_keys(found) for i, found in _read_numbered(head.get("peers")).items()}
        if len(peers) < FEWEST_SUMMED or peers.get(number) != publish_keys(session.keys):
            raise Refusal(
                f"a secure sum is of {FEWEST_SUMMED} sites or more, this one with its own keys"
            )
        context = name_sum(session.run, session.token, peers)
        made = make_shares(session.keys, number, peers, context)
        after = session._replace(
            step=MASKED, me=number, peers=peers, context=context, own=made.pop(number)
        )
        shares = {str(i): text.hex() for i, text in made.items()}
        return after, wire.pack({"error": "", "shares": shares})

    def _mask(
        self, session: Session, head: Head, number: int, rows: int
    ) -> tuple[Session | None, Frame]:
        given = {i: _read_hex(text) for i, text in _read_numbered(head.get("shares")).items()}
        weight = head.get("weight")
        if given.keys() != session.peers.keys() - {session.me}:
            raise Refusal("the message has not the shares of every site of the sum")
        if type(weight) is not int or not 1 <= weight <= rows:
            raise Refusal("the message gives this site a weight that its rows do not have")
        given[session.me] = session.own
        held = read_shares(session.keys, session.me, session.peers, given, session.context)
        whole = to_integers(weight * session.upload, len(session.peers))
        masked = mask_vector(whole, session.keys, session.me, session.peers, session.context)
        after = session._replace(step=REVEAL, held=held, weight=weight)
        return after, wire.pack({"error": ""}, torch.from_numpy(masked.view(np.int64)))

    def _reveal(
        self, session: Session, head: Head, number: int, rows: int
    ) -> tuple[Session | None, Frame]:
        found = head.get("answered")
        answered = (
            sorted(found) if isinstance(found, list) and set(map(type, found)) == {int} else []
        )
        known = set(answered) <= session.peers.keys() and len(set(answered)) == len(answered)
        if not known or session.me not in answered:
            raise Refusal("the message does not say whose sum is to be unmasked")
        shares = reveal_shares(session.held, answered, len(session.peers))
        self._bind(session.run, session.token, session.question, answered, session.weight)
        own, mask = ({str(i): hex(n) for i, n in part.items()} for part in shares)
        return None, wire.pack({"error": "", "own": own, "mask": mask})


def flatten_upload(upload: Tree) -> np.ndarray:
    """[n] float64, all numbers of an upload."""
    leaves = [t for t in pytree.tree_leaves(upload) if isinstance(t, Tensor)]
    parts = [t.reshape(-1).double().numpy() for t in leaves]
    return np.concatenate(parts) if parts else np.zeros(0)


def restore_upload(numbers: np.ndarray, like: Tree) -> Tree:
    """The same as an upload of this form; whole numbers are rounded, as in any mean."""
    leaves, spec = pytree.tree_flatten(like)
    found, start = [], 0
    for leaf in leaves:
        part = torch.from_numpy(numbers[start : start + leaf.numel()]).reshape(leaf.shape)
        found.append((part if leaf.is_floating_point() else part.round()).to(leaf.dtype))
        start += leaf.numel()
    return pytree.tree_unflatten(found, spec)


def name_sum(run: str, token: str, peers: Mapping[int, PublicKeys]) -> bytes:
    """What masks and shares belong to: sites that were told of other sites or keys than the rest
    mask with something else, and their sum is noise.
    """
    text = json.dumps([run, token, {str(i): write_keys(peers[i]) for i in sorted(peers)}])
    return hashlib.blake2b(text.encode(), digest_size=32).digest()


def write_keys(keys: PublicKeys) -> list[str]:
    """Public keys as words of a message."""
    return [key.hex() for key in keys]


def read_keys(found: Any) -> PublicKeys:
    """The same, read."""
    keys = [_read_hex(text) for text in found] if isinstance(found, list) else []
    if len(keys) != len(PublicKeys._fields) or any(len(key) != 32 for key in keys):
        raise Refusal("has sent keys that are none")
    return PublicKeys(*keys)


def _read_numbered(found: Any) -> dict[int, Any]:
    """A table by site number."""
    good = isinstance(found, dict) and all(text.isdecimal() for text in found)
    if not good:
        raise Refusal("the message has no table of sites")
    return {int(text): value for text, value in found.items()}


def _read_hex(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise Refusal("the message has words that are no bytes") from None
