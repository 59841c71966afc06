"""What a site lets out of an answer: rounded scores of enough rows, and errors without its own
words.

An error of a site may name its files or a cell of its rows. So only a `Refusal`, which speaks of
the server's message, leaves as it is; of any other error the server hears that the site's own log
has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coterie.core.errors import BadInput
from coterie.deploy.config_files import Limits
from coterie.engines.base import Metrics

WITHHELD = "cannot answer: its own log says why"


class Refusal(BadInput):
    """Why a site does not answer, in words that hold nothing of its own."""


class Unfit(BadInput):
    """What is wrong with a site's own files, for its operator; `told` is for the server."""

    def __init__(self, line: str, for_server: str) -> None:
        super().__init__(line)
        self.for_server = for_server


def text_for_others(problem: BaseException) -> str:
    """What the server hears of a problem."""
    if isinstance(problem, Refusal):
        return str(problem)
    return problem.for_server if isinstance(problem, Unfit) else WITHHELD


@contextmanager
def refusing() -> Iterator[None]:
    """For work on the server's settings alone: what is wrong with them may be told."""
    try:
        yield
    except (Refusal, Unfit):
        raise
    except BadInput as problem:
        raise Refusal(str(problem)) from None


def round_score(value: float, rows: int, digits: int) -> float:
    """A score as precisely as so many rows can tell it, and no more than `digits` digits; 0: as it
    is.

    A share of n rows has a standard error of up to 1 / (2 sqrt(n)); it is rounded to the next
    smaller step of 1, 2 or 5, of its own magnitude where it is above 1. So a score does not show
    whether one row was right.
    """
    if not digits or not math.isfinite(value):
        return float(value)
    error = max(0.5 / math.sqrt(max(rows, 1)), 10.0**-digits)
    power = 10.0 ** math.floor(math.log10(error))
    step = next(k for k in (5, 2, 1) if k * power <= error * (1 + 1e-9)) * power
    step *= 10.0 ** max(0, math.floor(math.log10(abs(value) or 1.0)))
    return float(f"{round(value / step) * step:.12g}")


def list_scores(
    found: Metrics, rows: Mapping[str, int], limits: Limits
) -> list[tuple[str, str, str, float]]:
    """(view, part, metric, value) of parts with enough rows; of none, NaN tells nothing."""
    return [
        (*key, round_score(float(column[0]), rows[key[1]], limits.digits))
        for key, column in found.items()
        if not 0 < rows[key[1]] < limits.rows
    ]


def round_logged(logged: Mapping[str, float], rows: int, limits: Limits) -> dict[str, float]:
    """What a method logs of its client, if that has enough training rows."""
    if rows < limits.rows:
        return {}
    if not limits.digits:
        return dict(logged)
    return {name: float(f"{value:.{limits.digits}g}") for name, value in logged.items()}
