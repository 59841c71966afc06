"""One scale for the rows of all sites, agreed on before the first round.

Every site sends three numbers per column of its training rows: how many there are, their sum, and
the sum of their squared distances from the site's own mean. The server pools them, as a simulation
does (see data/moments), and sends mean and deviation with every message; a site then scales its own
rows. No row leaves its site, but means and deviations of its columns do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.data.federation import Federation
from coterie.data.moments import Moments
from coterie.deploy import wire
from coterie.deploy.lines import plain
from coterie.deploy.replies import LARGEST_NUMBER, Answer, bounds, whole
from coterie.deploy.roll import Roll, Say

FILE = "scales.json"  # in the folder of the run
KIND = "moments"


class Scales(NamedTuple):
    """What becomes 0 and what becomes 1, by column; a deviation of 0 makes the column 0."""

    centre: list[float]
    spread: list[float]


def moments_of(federation: Federation, client: int) -> Moments:
    """The summary of a client's training rows."""
    rows = federation.x[torch.as_tensor(np.array(federation.train[client]))]
    return Moments.of(rows.flatten(1).double().numpy())


def pooled(summaries: Sequence[Moments]) -> Scales:
    """The scale of all rows together, in the order of the sites' numbers."""
    total = Moments.none(len(summaries[0].count))
    for one in summaries:
        total = total.plus(one)
    centre, spread = total.standard()
    return Scales(centre.tolist(), spread.tolist())


def scaled(federation: Federation, scales: Scales) -> Federation:
    """The same federation with its rows, and public rows, scaled as a simulation scales a table."""
    public = federation.public
    if public is not None:
        public = public._replace(x=_rows(public.x, scales))
    return federation._replace(x=_rows(federation.x, scales), public=public)


def _rows(x: torch.Tensor, scales: Scales) -> torch.Tensor:
    """Rows [n, columns] scaled in double precision."""
    columns = math.prod(x.shape[1:])
    if columns != len(scales.centre):
        raise BadInput(
            f"the scale has {len(scales.centre)} columns, the rows have {columns}: start the "
            "server again with the same data"
        )
    centre, spread = (torch.tensor(v, dtype=torch.float64) for v in scales)
    safe = torch.where(spread > 0, spread, 1.0)
    made = torch.where(spread > 0, (x.reshape(-1, columns).double() - centre) / safe, 0.0)
    return made.to(x.dtype).reshape(x.shape)


def from_words(given: Any) -> Scales | None:
    """The scales of a message or a file; None where it has none."""
    if given is None:
        return None
    try:
        centre, spread = ([float(v) for v in column] for column in given)
    except (TypeError, ValueError):
        raise BadInput("the scale of the columns is no two lists of numbers") from None
    fine = all(abs(v) <= LARGEST_NUMBER for v in (*centre, *spread)) and min(spread, default=0) >= 0
    if len(centre) != len(spread) or not fine:
        raise BadInput("the scale of the columns is no list of sensible numbers")
    return Scales(centre, spread)


def read_scales(run: Path) -> Scales | None:
    """The scale that a run was begun with; None where rows are as they are."""
    path = run / FILE
    return from_words(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def ask_scales(
    roll: Roll,
    words: Mapping[str, Any],
    rows: Sequence[int],  # training rows of every site; 0: it is not asked
    columns: int,
    seconds: float,
    say: Say,
) -> Scales:
    """The scale of all sites that answer; who does not is scaled by that of the others."""
    like = tuple(torch.zeros(columns, dtype=torch.float64) for _ in range(3))
    questions = {
        i: wire.pack({"kind": KIND, "words": words, "site": i, "name": roll.names[i]})
        for i, count in enumerate(rows)
        if count
    }
    most = dict.fromkeys(questions, bounds(like))
    found: dict[int, Moments] = {}
    for i, answer in roll.ask(questions, KIND, seconds, most).items():
        try:
            found[i] = _checked(answer, like, rows[i])
        except Exception as problem:  # whatever is wrong with one reply is its site's own
            say(f"scale of the columns: {roll.names[i]} {plain(problem)}; without its rows")
    if not found:
        raise BadInput(
            "no site told the mean and deviation of its columns: look at what they say, or write "
            'scale = "none" into [data] of server.toml'
        )
    return pooled([found[i] for i in sorted(found)])


def _checked(answer: Answer, like: Any, rows: int) -> Moments:
    count, total, squares = (t.numpy() for t in wire.fitting(whole(answer), like))
    if (count < 0).any() or (count > rows).any() or (count != np.floor(count)).any():
        raise BadInput(f"counts cells that {rows:,} rows cannot have")
    if (squares < 0).any() or max(np.abs(total).max(), squares.max()) > LARGEST_NUMBER:
        raise BadInput("sums its columns to what no column has")
    return Moments(count.astype(np.int64), total, squares)
