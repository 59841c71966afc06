"""One scale for the rows of all sites, agreed on before the first round.

Every site sends three numbers per column of its training rows: how many there are, their sum, and
the sum of their squared distances from the site's own mean. The server pools them, as a simulation
does (see data/moments), and sends mean and deviation with every message; a site then scales its own
rows. Where the label is a number, it is scaled in the same way. No row leaves its site, but means
and deviations of its columns do.
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
from coterie.core.task import TASKS
from coterie.data.federation import Federation
from coterie.data.prepare.moments import Moments
from coterie.deploy import wire
from coterie.deploy.config_files import DataShape
from coterie.deploy.logs import sanitize
from coterie.deploy.replies import LARGEST_NUMBER, Answer, check_reply, compute_bounds
from coterie.deploy.roster import LogLine, Roster

FILE = "scales.json"  # in the folder of the run
MOMENTS = "moments"


class Scales(NamedTuple):
    """What becomes 0 and what becomes 1, by column; a deviation of 0 makes the column 0."""

    centre: list[float]  # of each feature; [] where they are as they are
    spread: list[float]
    target: list[float] = []  # noqa: RUF012  # mean and deviation of the label, where it is a number


def moments_of(federation: Federation, client: int) -> Moments:
    """The summary of a client's training rows: features that are scaled, then the label if it is
    a number.
    """
    rows = torch.as_tensor(np.array(federation.train[client]))
    kept, columns = federation.preparation, []
    if kept is None or kept.scale == "standard":
        columns.append(federation.x[rows].flatten(1).double().numpy())
    if TASKS[federation.target.task].is_number:
        columns.append(federation.y[rows].double().numpy()[:, None])
    return Moments.of(np.concatenate(columns, 1))


def pool_scales(summaries: Sequence[Moments], target: bool = False) -> Scales:
    """The scale of all rows together, in the order of the sites' numbers; target: the last column
    is the label.
    """
    total = Moments.none(len(summaries[0].count))
    for one in summaries:
        total = total.plus(one)
    centre, spread = (values.tolist() for values in total.standard())
    if not target:
        return Scales(centre, spread)
    if not spread[-1]:
        raise BadInput(
            f"the label is {centre[-1]:g} in every training row: there is nothing to learn of a "
            "constant"
        )
    return Scales(centre[:-1], spread[:-1], [centre[-1], spread[-1]])


def placeholder_scales(shape: DataShape) -> Scales | None:
    """What stands for the scale before the sites have agreed on one; None: there will be none."""
    if not shape.sums:
        return None
    columns = shape.features if shape.scale == "standard" else 0
    return Scales([0.0] * columns, [1.0] * columns, [0.0, 1.0] * shape.learnt.is_number)


def scale_federation(federation: Federation, scales: Scales | None) -> Federation:
    """The same federation with its rows, public rows and numbers to learn, scaled as a simulation
    scales a table; None: as they are.
    """
    if scales is None:
        return federation
    public, kept = federation.public, federation.preparation
    if scales.centre:
        if public is not None:
            public = public._replace(x=_scale_rows(public.x, scales))
        federation = federation._replace(x=_scale_rows(federation.x, scales), public=public)
    if kept is None:
        return federation
    if scales.centre and kept.columns:
        ends = zip(kept.columns, scales.centre, scales.spread, strict=True)
        kept = kept._replace(columns=tuple(c._replace(centre=m, spread=s) for c, m, s in ends))
    if scales.target and kept.target is not None:
        target = kept.target.at(*scales.target)
        federation = federation._replace(y=torch.from_numpy(target.scaled(federation.y.numpy())))
        kept = kept._replace(target=target)
    return federation._replace(preparation=kept)


def _scale_rows(x: torch.Tensor, scales: Scales) -> torch.Tensor:
    """Rows [n, columns] scaled in double precision."""
    columns = math.prod(x.shape[1:])
    if columns != len(scales.centre):
        raise BadInput(
            f"the scale has {len(scales.centre)} columns, the rows have {columns}: start the "
            "server again with the same data"
        )
    centre, spread = (torch.tensor(v, dtype=torch.float64) for v in scales[:2])
    safe = torch.where(spread > 0, spread, 1.0)
    made = torch.where(spread > 0, (x.reshape(-1, columns).double() - centre) / safe, 0.0)
    return made.to(torch.get_default_dtype()).reshape(x.shape)


def parse_scales(given: Any) -> Scales | None:
    """The scales of a message or a file; None where it has none."""
    if given is None:
        return None
    try:
        centre, spread, *more = ([float(v) for v in column] for column in given)
        target = more[0] if more else []
    except (TypeError, ValueError):
        raise BadInput("the scale of the columns is no lists of numbers") from None
    every = (*centre, *spread, *target)
    fine = all(abs(v) <= LARGEST_NUMBER for v in every) and min(spread, default=0) >= 0
    if len(centre) != len(spread) or len(more) > 1 or len(target) not in (0, 2) or not fine:
        raise BadInput("the scale of the columns is no list of sensible numbers")
    if target and target[1] <= 0:
        raise BadInput(f"the scale of the columns has a label of deviation {target[1]:g}")
    return Scales(centre, spread, target)


def read_scales(run: Path) -> Scales | None:
    """The scale that a run was begun with; None where rows are as they are."""
    path = run / FILE
    return parse_scales(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def ask_scales(
    roll: Roster,
    words: Mapping[str, Any],
    rows: Sequence[int],  # training rows of every site; 0: it is not asked
    columns: int,
    seconds: float,
    say: LogLine,
    target: bool = False,  # whether the last column is the label
    outlier: float = 0.0,  # how many times further than usual from the others' a mean may lie
) -> Scales:
    """The scale of all sites that answer; who does not is scaled by that of the others."""
    like = tuple(torch.zeros(columns, dtype=torch.float64) for _ in range(3))
    questions = {
        i: wire.pack({"kind": MOMENTS, "words": words, "site": i, "name": roll.names[i]})
        for i, count in enumerate(rows)
        if count
    }
    most = dict.fromkeys(questions, compute_bounds(like))
    found: dict[int, Moments] = {}
    for i, answer in roll.ask(questions, MOMENTS, seconds, most).items():
        try:
            found[i] = _check_moments(answer, like, rows[i])
        except Exception as problem:  # whatever is wrong with one reply is its site's own
            say(f"scale of the columns: {roll.names[i]} {sanitize(problem)}; without its rows")
    for i, why in find_outliers(found, outlier).items():
        del found[i]
        say(f"scale of the columns: {roll.names[i]} {why}; without its rows")
    if not found:
        raise BadInput(
            "no site told the mean and deviation of its columns: look at what they say, or write "
            'scale = "none" into [data] of server.toml'
        )
    return pool_scales([found[i] for i in sorted(found)], target)


def find_outliers(found: Mapping[int, Moments], outlier: float) -> dict[int, str]:
    """Sites whose columns are so far from the others' that they would scale everybody's rows, and
    why; what is usual is the median over sites, so that one of them cannot change it.
    """
    if len(found) < 3 or not outlier:
        return {}
    sites = sorted(found)
    ends = [found[i].standard() for i in sites]
    mean, spread = (np.stack(values) for values in zip(*ends, strict=True))  # [sites, columns]
    away = np.maximum(np.abs(mean - np.median(mean, 0)), spread)
    usual = np.median(away, 0)
    out = {}
    for i, row in zip(sites, away, strict=True):
        bad = np.flatnonzero((row > outlier * usual) & (usual > 0))
        if len(bad):
            k = int(bad[0])
            out[i] = (
                f"has mean or deviation {row[k]:.3g} from the others' in column {k + 1}, the "
                f"median of the sites is {usual[k]:.3g} (rules.outlier = {outlier:g})"
            )
    return out


def _check_moments(answer: Answer, like: Any, rows: int) -> Moments:
    count, total, squares = (t.numpy() for t in wire.decode_like(check_reply(answer), like))
    if (count < 0).any() or (count > rows).any() or (count != np.floor(count)).any():
        raise BadInput(f"counts cells that {rows:,} rows cannot have")
    if (squares < 0).any() or max(np.abs(total).max(), squares.max()) > LARGEST_NUMBER:
        raise BadInput("sums its columns to what no column has")
    return Moments(count.astype(np.int64), total, squares)
