"""The columns of a table that every site has: declared by the server, read at a site as they were
in its example, prepared as all sites agreed.

Before they have agreed, a cell of a category is its number in a list of texts, the code book of its
column. Every file has its own; rows of several files are put together under one book of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.prepare.preparation import BUCKETS, FittedColumn, Preparation, prepare_rows
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, NUMBER, Column

CLIENT = "client"  # a column that is not a feature, as in a folder of one file per client
ONE_HOT = 20  # categories with a column of their own, as in `coterie run`; beyond, they are hashed
LONGEST_NAME = 200  # characters of a category; longer ones are not told, and so are others
LARGEST_NUMBER = 1e30
KINDS = (NUMBER, BOOLEAN, CATEGORY, DATE)


class AgreedColumn(NamedTuple):
    """What the sites agreed on for one column, beside its scale."""

    fill: float = 0.0  # what a missing number becomes
    indicator: bool = False  # whether a column says which cells were missing
    hours: bool = False  # whether a date has a time of day
    categories: tuple[str, ...] = ()  # each a column
    buckets: int = 0  # columns of a text that is hashed instead


def declare_column(column: Column) -> str:
    """A column as [data] table of server.toml writes it: `visit: date %d/%m/%Y`."""
    return f"{column.name}: {column.kind} {column.form}".rstrip()


def parse_declared(text: str) -> Column:
    """The same, read."""
    name, _, rest = text.rpartition(": ")
    kind, _, form = rest.partition(" ")
    if not name or kind not in KINDS:
        raise BadInput(
            f"data.table has '{text[:80]}': give name and kind of a column, as in 'age: number' "
            f"({', '.join(KINDS)})"
        )
    return Column(name, kind, form=form)


def placeholder_columns(columns: Sequence[Column]) -> list[AgreedColumn]:
    """What stands for the agreement before there is one."""
    return [AgreedColumn() for _ in columns]


def fit_columns(
    columns: Sequence[FittedColumn],
    agreed: Sequence[AgreedColumn],
    centre: Sequence[float],
    spread: Sequence[float],
) -> tuple[FittedColumn, ...]:
    """The columns as all sites prepare them."""
    if not len(columns) == len(agreed) == len(centre) == len(spread):
        raise BadInput(
            f"the sites agreed on {len(agreed)} columns, the table has {len(columns)}: start the "
            "server again with the same data"
        )
    parts = zip(columns, agreed, centre, spread, strict=True)
    return tuple(
        FittedColumn(c.name, c.kind, form=c.form, centre=m, spread=s, **a._asdict())
        for c, a, m, s in parts
    )


def prepare_cells(
    cells: np.ndarray, books: Sequence[FittedColumn], fitted: Preparation
) -> np.ndarray:
    """Inputs [n, inputs] float32 of cells [n, columns], whose code books stand in `books`."""
    columns = [Column(c.name, c.kind, c.categories, form=c.form) for c in books]
    return prepare_rows(fitted, cells, columns)


def join_books(
    tables: Sequence[np.ndarray], books: Sequence[Sequence[Column]]
) -> tuple[list[np.ndarray], list[Column]]:
    """Cells of several files under one code book of each column."""
    joined = []
    for same in zip(*books, strict=True):
        every = sorted({value for column in same for value in column.values})
        joined.append(same[0]._replace(values=tuple(every)))
    return [_recode(*pair, joined) for pair in zip(tables, books, strict=True)], joined


def _recode(cells: np.ndarray, old: Sequence[Column], new: Sequence[Column]) -> np.ndarray:
    """Cells whose texts have other numbers now; a missing one stays so."""
    made = cells.copy()
    for k, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.kind == CATEGORY and before.values != after.values:
            place = {value: float(at) for at, value in enumerate(after.values)}
            numbers = np.array([*(place[value] for value in before.values), np.nan])
            codes = np.where(np.isnan(cells[:, k]), len(before.values), cells[:, k])
            made[:, k] = numbers[codes.astype(np.int64)]
    return made


def parse_agreed(given: Any) -> list[AgreedColumn]:
    """The agreement of a message or a file; BadInput where it makes no sense."""
    try:
        found = [
            AgreedColumn._make(tuple(v) if isinstance(v, list) else v for v in column)
            for column in given
        ]
        good = all(_is_sensible(column) for column in found)
    except TypeError:
        good = False
    if not good:
        raise BadInput("what the columns become is not what sites agree on")
    return found


def _is_sensible(column: AgreedColumn) -> bool:
    texts = column.categories
    return (
        isinstance(column.fill, float | int)
        and abs(column.fill) <= LARGEST_NUMBER  # false for NaN
        and isinstance(column.indicator, bool)
        and isinstance(column.hours, bool)
        and isinstance(texts, tuple)
        and len(set(texts)) == len(texts) <= ONE_HOT
        and all(isinstance(text, str) and len(text) <= LONGEST_NAME for text in texts)
        and column.buckets in (0, BUCKETS)
    )
