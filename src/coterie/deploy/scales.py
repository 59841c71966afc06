"""One scale for the rows of all sites, agreed on before the first round.

Every site sends three numbers per column of its training rows: how many there are, their sum, and
the sum of their squared distances from the site's own mean. The server pools them, as a simulation
does (see data/moments), and sends mean and deviation with every message; a site then scales its own
rows. Where the label is a number, it is scaled in the same way. Of a table it tells more, see
statistics, and what its columns become goes out with the scale. No row leaves its site, but means
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
from coterie.data.prepare.preparation import Preparation
from coterie.data.read.columns import Column
from coterie.deploy import wire
from coterie.deploy.claims import cap_moments
from coterie.deploy.config_files import DataShape, Limits
from coterie.deploy.logs import sanitize
from coterie.deploy.replies import LARGEST_NUMBER, Answer, check_reply, compute_bounds
from coterie.deploy.roster import LogLine, Roster
from coterie.deploy.statistics import ColumnSums, pool_facts, read_facts, summarize_columns
from coterie.deploy.table_columns import (
    AgreedColumn,
    fit_columns,
    parse_agreed,
    placeholder_columns,
    prepare_cells,
)

FILE = "scales.json"  # in the folder of the run
MOMENTS = "moments"


class Scales(NamedTuple):
    """What becomes 0 and what becomes 1, by column; a deviation of 0 makes the column 0."""

    centre: list[float]  # of each feature; [] where they are as they are
    spread: list[float]
    target: list[float] = []  # noqa: RUF012  # mean and deviation of the label, where it is a number
    columns: list[AgreedColumn] = []  # noqa: RUF012  # what those of a table become; []: of numbers


def sum_rows(federation: Federation, client: int, shape: DataShape, limits: Limits) -> ColumnSums:
    """What a site tells of its training rows, which `site_federation` has cut."""
    rows = len(federation.train[client])
    if not shape.table:
        return ColumnSums(rows, moments_of(federation, client))
    at = torch.as_tensor(np.array(federation.train[client]))
    assert federation.preparation is not None
    columns = [Column(c.name, c.kind, c.categories) for c in federation.preparation.columns]
    moments, facts = summarize_columns(federation.x[at].numpy(), columns, limits)
    if shape.learnt.has_units:
        label = Moments.of(federation.y[at].double().numpy()[:, None])
        ends = zip(_parts_of(moments), _parts_of(label), strict=True)
        moments = Moments(*(np.concatenate(both) for both in ends))
    return ColumnSums(rows, moments, facts)


def _parts_of(moments: Moments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return moments.count, moments.total, moments.squares


def moments_of(federation: Federation, client: int) -> Moments:
    """The summary of a client's training rows: features that are scaled, then the label if it is
    a number.
    """
    rows = torch.as_tensor(np.array(federation.train[client]))
    kept, columns = federation.preparation, []
    if kept is None or kept.scale == "standard":
        columns.append(federation.x[rows].flatten(1).double().numpy())
    if TASKS[federation.target.task].has_units:
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
    columns = shape.sums - shape.learnt.has_units
    agreed = placeholder_columns(shape.table_columns)
    return Scales([0.0] * columns, [1.0] * columns, [0.0, 1.0] * shape.learnt.has_units, agreed)


def scale_federation(federation: Federation, scales: Scales | None) -> Federation:
    """The same federation with its rows, public rows and numbers to learn, scaled as a simulation
    scales a table; None: as they are.
    """
    if scales is None:
        return federation
    public, kept = federation.public, federation.preparation
    if scales.columns:
        federation = _prepare_table(federation, scales)
        kept = federation.preparation
    elif scales.centre:
        if public is not None:
            public = public._replace(x=_scale_rows(public.x, scales))
        federation = federation._replace(x=_scale_rows(federation.x, scales), public=public)
    if kept is None:
        return federation
    if scales.centre and kept.columns and not scales.columns:
        ends = zip(kept.columns, scales.centre, scales.spread, strict=True)
        kept = kept._replace(columns=tuple(c._replace(centre=m, spread=s) for c, m, s in ends))
    if scales.target and kept.target is not None:
        target = kept.target.at(*scales.target)
        federation = federation._replace(y=torch.from_numpy(target.scale(federation.y.numpy())))
        kept = kept._replace(target=target)
    return federation._replace(preparation=kept)


def _prepare_table(federation: Federation, scales: Scales) -> Federation:
    """The rows and public rows of a table, whose cells are under the code books of its
    preparation, as inputs.
    """
    raw, public = federation.preparation, federation.public
    if raw is None or not raw.columns:
        raise BadInput("the scale is that of a table, the rows are none: give the sites' own files")
    columns = fit_columns(raw.columns, scales.columns, *scales[:2])
    made: Preparation = raw._replace(columns=columns)

    def prepare(cells: torch.Tensor) -> torch.Tensor:
        inputs = prepare_cells(cells.numpy(), raw.columns, made)
        return torch.from_numpy(inputs).to(torch.get_default_dtype())

    if public is not None:
        public = public._replace(x=prepare(public.x))
    return federation._replace(x=prepare(federation.x), public=public, preparation=made)


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
        agreed = parse_agreed(given[3]) if len(given) > 3 else []
        centre, spread, *more = ([float(v) for v in column] for column in given[:3])
        target = more[0] if more else []
    except (TypeError, ValueError):
        raise BadInput("the scale of the columns is no lists of numbers") from None
    every = (*centre, *spread, *target)
    fine = all(abs(v) <= LARGEST_NUMBER for v in every) and min(spread, default=0) >= 0
    if (
        len(centre) != len(spread)
        or len(given) > len(Scales._fields)
        or len(target) not in (0, 2)
        or not fine
    ):
        raise BadInput("the scale of the columns is no list of sensible numbers")
    if target and target[1] <= 0:
        raise BadInput(f"the scale of the columns has a label of deviation {target[1]:g}")
    return Scales(centre, spread, target, agreed)


def read_scales(run: Path) -> Scales | None:
    """The scale that a run was begun with; None where rows are as they are."""
    path = run / FILE
    return parse_scales(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def ask_sums(
    roll: Roster,
    settings: Mapping[str, Any],
    rows: Sequence[int],  # training rows of every site; 0: it is not asked
    columns: int,
    seconds: float,
    say: LogLine,
    table: Sequence[Column] = (),
    outlier: float = 0.0,  # how many times further than usual from the others' a mean may lie
) -> dict[int, ColumnSums]:
    """What every site tells of its columns; who does not, or tells what no site has, is named."""
    like = tuple(torch.zeros(columns, dtype=torch.float64) for _ in range(3))
    questions = {
        i: wire.pack({"kind": MOMENTS, "words": settings, "site": i, "name": roll.names[i]})
        for i, count in enumerate(rows)
        if count
    }
    most = dict.fromkeys(questions, compute_bounds(like))
    found: dict[int, ColumnSums] = {}
    for i, answer in roll.ask(questions, MOMENTS, seconds, most).items():
        try:
            found[i] = _check_sums(answer, like, rows[i], table)
        except Exception as problem:  # whatever is wrong with one reply is its site's own
            say(f"scale of the columns: {roll.names[i]} {sanitize(problem)}; without its rows")
    for i, why in find_outliers({i: one.moments for i, one in found.items()}, outlier).items():
        del found[i]
        say(f"scale of the columns: {roll.names[i]} {why}; without its rows")
    if not found:
        way = "" if table else ', or write scale = "none" into [data] of server.toml'
        raise BadInput(
            f"no site told the mean and deviation of its columns: look at what they say{way}"
        )
    return found


def ask_scales(
    roll: Roster,
    settings: Mapping[str, Any],
    rows: Sequence[int],  # training rows of every site; 0: it is not asked
    columns: int,
    seconds: float,
    say: LogLine,
    target: bool = False,  # whether the last column is the label
    outlier: float = 0.0,
    claims: float = 0.0,  # how many times more rows than the median of the sites count
    table: Sequence[Column] = (),  # where rows are more than numbers
    standard: bool = True,  # whether numbers are scaled
) -> Scales:
    """The scale of all sites that answer; who does not is scaled by that of the others."""
    found = ask_sums(roll, settings, rows, columns, seconds, say, table, outlier)
    capped = cap_moments({i: one.moments for i, one in found.items()}, claims)
    sites = sorted(found)
    scales = pool_scales([capped[i] for i in sites], target)
    if not table:
        return scales
    counts = np.stack([capped[i].count for i in sites])
    agreed = pool_facts(table, [found[i].facts for i in sites], counts)
    if not standard:
        scales = scales._replace(centre=[0.0] * len(table), spread=[1.0] * len(table))
    return scales._replace(columns=agreed)


def find_outliers(found: Mapping[int, Moments], outlier: float) -> dict[int, str]:
    """Sites whose columns are so far from the others' that they would scale everybody's rows, and
    why; what is usual is the median over sites, so that one of them cannot change it.

    A deviation may be too small as well as too large. One of 0 is not: a column may be the same in
    all rows of a site.
    """
    if len(found) < 3 or not outlier:
        return {}
    sites = sorted(found)
    ends = [found[i].standard() for i in sites]
    mean, spread = (np.stack(values) for values in zip(*ends, strict=True))  # [sites, columns]
    empty = np.stack([found[i].count == 0 for i in sites])  # as of a category
    some = np.ma.array(mean, mask=empty)
    mean = np.where(empty, np.ma.median(some, 0).filled(0.0), mean)
    away = np.maximum(np.abs(mean - np.median(mean, 0)), spread)
    usual, middle = np.median(away, 0), np.median(spread, 0)
    out = {}
    for i, row, own in zip(sites, away, spread, strict=True):
        small = np.flatnonzero((own > 0) & (own * outlier < middle))
        if len(small):
            k = int(small[0])
            out[i] = (
                f"has deviation {own[k]:.3g} in column {k + 1}, the median of the sites is "
                f"{middle[k]:.3g} (rules.outlier = {outlier:g})"
            )
        bad = np.flatnonzero((row > outlier * usual) & (usual > 0))
        if len(bad):
            k = int(bad[0])
            out[i] = (
                f"has mean or deviation {row[k]:.3g} from the others' in column {k + 1}, the "
                f"median of the sites is {usual[k]:.3g} (rules.outlier = {outlier:g})"
            )
    return out


def _check_sums(answer: Answer, like: Any, rows: int, table: Sequence[Column]) -> ColumnSums:
    content = check_reply(answer)
    count, total, squares = (t.numpy() for t in wire.decode_like(content, like))
    if (count < 0).any() or (count > rows).any() or (count != np.floor(count)).any():
        raise BadInput(f"counts cells that {rows:,} rows cannot have")
    if (squares < 0).any() or max(np.abs(total).max(), squares.max()) > LARGEST_NUMBER:
        raise BadInput("sums its columns to what no column has")
    moments = Moments(count.astype(np.int64), total, squares)
    facts = read_facts(content.head.get("facts"), table, moments, rows) if table else ()
    return ColumnSums(rows, moments, facts)
