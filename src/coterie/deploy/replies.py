"""All that comes from a site is read here, and nothing of it is believed before it is checked.

A reply may hold at most what was asked for: so many bytes, the keys that its kind has, numbers in
their range, an upload of the method's own form. Whatever is wrong with it is a BadInput whose words
follow the site's name: the site is left out of the exchange, and nobody else.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.analysis.scores import LOSS, Score, scores_of
from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.quantities import LoggedQuantity, find_declaration
from coterie.core.tree import encode
from coterie.core.version import __version__
from coterie.data.federation import PARTS
from coterie.deploy import wire
from coterie.deploy.frames import BadFrame, Frame, unpack_frame
from coterie.deploy.logs import sanitize
from coterie.deploy.upload_privacy import list_arrays
from coterie.deploy.wire import Content, Head
from coterie.engines.base import Effort
from coterie.engines.local.states import to_tensors

HEAD_BYTES = 2**18  # bytes of the head of a reply, beside what describes its arrays
SPARE_BYTES = 2**20  # bytes of a body beyond twice what is needed
MAX_ROWS = 10**9
MAX_STEPS = 10**12
MAX_LOGGED = 5_000
LARGEST_NUMBER = 1e30  # of a loss or a note
MAX_CHARACTERS = 200  # characters of a name, a version, a digest
FORM = ("error", "tree", "table", "digest", "seconds")
KEYS = {  # of a reply of each kind, beside its form; an error has those of "error"
    "hello": ("name", "version", "rows", "columns", "public"),
    "moments": ("name", "facts"),
    "train": ("token", "effort", "notes", "keys"),
    "shares": ("shares",),
    "masked": (),
    "reveal": ("own", "mask"),
    "evaluate": ("values",),
    "finish": ("name",),
    "model": (),
    "judge": ("values",),
    "error": ("name", "code"),
}
Answer = Content | str  # a reply, or why there is none


class Bounds(NamedTuple):
    """The most bytes that a reply may have."""

    head: int = HEAD_BYTES
    body: int = 0


class SiteWork(NamedTuple):
    """A site's accepted reply to an exchange."""

    token: str
    upload: Tree
    notes: dict[str, float]
    effort: Effort
    seconds: float
    keys: Any = None  # of a site that masks its upload: see secure_round


def compute_bounds(like: Tree) -> Bounds:
    """What a reply with such an upload needs, and a little more."""
    found: dict[str, Any] = {}
    skeleton = json.dumps(encode(to_tensors(like), found))
    table = sum(64 + 24 * t.dim() for t in found.values())
    # a site with another network is told of its shapes, so a little more than needed is read
    body = 2 * sum(t.nbytes for t in found.values()) + SPARE_BYTES
    return Bounds(HEAD_BYTES + 2 * (len(skeleton) + table), body)


def read_reply(reply: Any, kind: str, bound: Bounds) -> Answer:
    """A message of Flower as a reply of this kind, or why it is none; raises nothing."""
    try:
        if reply.has_error():
            said = reply.error.reason or f"error {reply.error.code}"
            return f"cannot answer: {sanitize(said, 300)}"
        return _check_frame(unpack_frame(reply.content, bound.body), kind, bound)
    except Exception as problem:  # whatever a hostile message makes its reader raise
        known = isinstance(problem, BadInput | BadFrame)
        why = problem if known else f"{type(problem).__name__}: {problem}"
        return f"sent what cannot be read: {sanitize(why)}"


def _check_frame(frame: Frame, kind: str, bound: Bounds) -> Content:
    size, most = len(frame.head), bound.head
    if size > most:
        raise BadInput(f"its head has {size:,} bytes, at most {most:,} were asked for")
    content = wire.unpack(frame)
    head = content.head
    known = (*FORM, *KEYS["error" if head.get("error") else kind])
    strange = [key for key in head if key not in known]
    if strange:
        raise BadInput(f"it has a field '{sanitize(strange[0], 40)}' that no such reply has")
    for option in ("error", "name", "version", "columns", "public", "code", "token"):
        value = head.get(option, "")
        if not isinstance(value, str) or len(value) > (
            10_000 if option == "error" else MAX_CHARACTERS
        ):
            raise BadInput(f"its {option} is {sanitize(value, 40)}, not a short text")
    return content


def check_reply(answer: Answer) -> Content:
    """A reply that is not an error."""
    if isinstance(answer, str):
        raise BadInput(answer)
    if answer.head.get("error"):
        raise BadInput(f"refused: {sanitize(answer.head['error'])}")
    return answer


def check_hello(answer: Answer, registered: str) -> Head:
    """What a site says of itself when it is greeted; `registered` is the name of its key."""
    if isinstance(answer, str):
        raise BadInput(f"'{registered}' {answer}" if registered else f"a node {answer}")
    head = answer.head
    who = registered or sanitize(head.get("name"), 80)  # a name that no key proves may be anybody's
    if head.get("error"):
        raise BadInput(f"'{who}' says: {sanitize(head['error'])}")
    if head.get("version", __version__) != __version__:
        raise BadInput(
            f"'{who}' runs coterie {sanitize(head['version'], 40)}, this server {__version__}: "
            "install the same version at both"
        )
    rows = head.get("rows")
    if not isinstance(rows, dict) or set(rows) != set(PARTS):
        raise BadInput(f"'{who}' does not say how many rows it has")
    for part in PARTS:
        if not _is_whole(rows[part], MAX_ROWS):
            shown = sanitize(rows[part], 40)
            raise BadInput(
                f"'{who}' says that it has {shown} rows to {part}: it must be a whole number from "
                f"0 to {MAX_ROWS:,}"
            )
    if not re.fullmatch(r"[0-9a-f]*", head.get("columns", "")):
        raise BadInput(f"'{who}' does not say which columns it has")
    return head


def accept_work(
    answer: Answer,
    token: str,
    like: Tree,  # what its upload looks like
    payload: Tree,  # what it was sent
    describes: Mapping[str, LoggedQuantity],
    longest: float,
) -> SiteWork:
    """A site's work, if it is what was asked for; it cannot have worked longer than `longest`."""
    content = check_reply(answer)
    head: Head = content.head
    effort, seconds = head.get("effort"), head.get("seconds", math.nan)
    if head.get("token") != token:
        said = sanitize(head.get("token"), 40)
        raise BadInput(f"answered another question ({said} instead of {token}): left out")
    if (
        not isinstance(effort, list)
        or len(effort) != len(Effort._fields)
        or not all(_is_whole(n, MAX_STEPS) for n in effort)
    ):
        raise BadInput("does not say what its work took: left out")
    if not _is_number(seconds) or not 0 <= seconds <= longest:
        raise BadInput(f"says that it worked {sanitize(seconds, 40)} seconds: left out")
    notes = _check_logged(head.get("notes"), describes)
    try:
        upload = wire.decode_like(content, like)
        _check_choices(upload, payload)
    except BadInput as problem:
        raise BadInput(f"is left out: {problem}") from None
    return SiteWork(
        token=token,
        upload=upload,
        notes=notes,
        effort=Effort(*effort),
        seconds=float(seconds),
        keys=head.get("keys"),
    )


def _check_choices(upload: Tree, payload: Tree) -> None:
    """Refuse a whole number that chooses what was not offered: servers use it to look things up.

    Where whole numbers were sent, as the ids of the models in the payload, it is one of them;
    else it is the number of one of the models that were sent as a stack.
    """
    sent = list_arrays(payload)
    offered = [t for t in sent if not t.is_floating_point() and t.dim()]
    models = [t for t in pytree.tree_leaves(payload) if t.dim()]
    stacked = min((len(t) for t in models), default=0)
    for got in list_arrays(upload):
        if got.is_floating_point() or got.dtype == torch.bool or not got.numel():
            continue
        known = torch.cat([t.reshape(-1).to(got.dtype) for t in offered]) if offered else None
        good = (got >= 0) & (got < stacked) if known is None else torch.isin(got, known)
        if not bool(good.all()):
            raise BadInput(f"its upload chooses number {int(got[~good][0])}, which was not offered")


def _check_logged(found: Any, describes: Mapping[str, LoggedQuantity]) -> dict[str, float]:
    """What the method notes of its client; NaN is how a method says that it has nothing to note."""
    if not isinstance(found, dict) or not all(_is_nan(v) or _is_number(v) for v in found.values()):
        raise BadInput("sent notes that are no numbers: left out")
    if len(found) > MAX_LOGGED:
        raise BadInput(f"sent {len(found):,} notes, more than {MAX_LOGGED:,}: left out")
    for name in found:
        if len(name) > MAX_CHARACTERS or not find_declaration(name, describes):
            raise BadInput(f"sent a note '{sanitize(name, 40)}' that the method has not: left out")
    return {name: float(value) for name, value in found.items()}


def read_measures(
    content: Content,
    views: Sequence[str],
    parts: Sequence[str],
    rows: Mapping[str, int],
    task: str = "classes",
) -> list[tuple[str, str, str, float]]:
    """(view, part, metric, value) of what was asked for; NaN where a part has no rows."""
    known = {score.name: score for score in (LOSS, *scores_of(task))}
    found = content.head.get("values")
    if not isinstance(found, list) or len(found) > len(views) * len(parts) * len(known):
        raise BadInput("sent no list of measures, or too long a one: left out")
    return [_check_measure(value, views, parts, rows, known) for value in found]


def _check_measure(
    given: Any,
    views: Sequence[str],
    parts: Sequence[str],
    rows: Mapping[str, int],
    known: Mapping[str, Score],  # the loss, then what the task is usually judged by
) -> tuple[str, str, str, float]:
    if not isinstance(given, list) or len(given) != 4:
        raise BadInput(f"sent {sanitize(given, 60)} as a measure: left out")
    view, part, metric, value = given
    if view not in views or part not in parts or not isinstance(metric, str) or metric not in known:
        raise BadInput(f"sent a measure that nobody asked for, {sanitize(given, 60)}: left out")
    # a score of a diverged model is not a number either
    if _is_nan(value) and (not rows[part] or metric not in list(known)[:2]):
        return view, part, metric, math.nan
    low, most = known[metric].bounds
    low = -LARGEST_NUMBER if metric == LOSS.name else low  # of some losses
    if not _is_number(value) or not low <= value <= most + 1e-6:
        raise BadInput(f"sent {sanitize(value, 40)} as the {metric} of its {part} rows: left out")
    return view, part, metric, float(value)


def _is_number(value: Any) -> bool:
    """A finite number of a sensible size."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -LARGEST_NUMBER <= value <= LARGEST_NUMBER  # false for NaN


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
