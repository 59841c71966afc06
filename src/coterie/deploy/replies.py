"""What sites answer, checked before the server believes any of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from coterie.analysis.scores import NAMES as SCORES
from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.deploy import wire
from coterie.deploy.roll import Answer
from coterie.deploy.wire import Content, Head
from coterie.engines.base import Effort

MEASURES = ("loss", "accuracy", *SCORES)


class Work(NamedTuple):
    """A site's accepted reply to an exchange."""

    token: str
    upload: Tree
    notes: dict[str, float]
    effort: Effort
    seconds: float


def whole(answer: Answer) -> Content:
    """A reply that is no error."""
    if isinstance(answer, str):
        raise BadInput(answer)
    if answer.head.get("error"):
        raise BadInput(f"refused: {str(answer.head['error'])[:500]}")
    return answer


def accepted(answer: Answer, token: str, like: Tree) -> Work:
    """A site's work, if it is what was asked for."""
    content = whole(answer)
    head: Head = content.head
    notes, effort, seconds = head.get("notes"), head.get("effort"), head.get("seconds")
    if head.get("token") != token:
        raise BadInput(
            f"answered another question ({str(head.get('token'))[:40]} instead of {token}): left "
            "out"
        )
    if (
        not isinstance(effort, list)
        or len(effort) != len(Effort._fields)
        or not all(isinstance(n, int) for n in effort)
    ):
        raise BadInput("does not say what its work took: left out")
    if not (
        isinstance(notes, dict)
        and all(_is_number(v) for v in notes.values())
        and _is_number(seconds)
    ):
        raise BadInput("sent notes that are no numbers: left out")
    try:
        upload = wire.fitting(content, like)
    except BadInput as problem:
        raise BadInput(f"is left out: {problem}") from None
    return Work(
        token,
        upload,
        {str(k): float(v) for k, v in notes.items()},
        Effort(*effort),
        float(seconds or 0),
    )


def measures(
    content: Content, views: Sequence[str], parts: Sequence[str]
) -> list[tuple[str, str, str, float]]:
    """(view, part, metric, value) of what was asked for, and nothing else that a site may say."""
    found = content.head.get("values")
    return (
        [tuple(value) for value in found if _is_measure(value, views, parts)]
        if isinstance(found, list)
        else []
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_measure(value: Any, views: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether this is [view, part, metric, number] of what was asked."""
    if not isinstance(value, list) or len(value) != 4 or not _is_number(value[3]):
        return False
    return value[0] in views and value[1] in parts and value[2] in MEASURES
