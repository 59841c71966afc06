"""One long table, a row per (round, client, view, part, metric); everything else is computed from
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.analysis.numbers import deviation_of, mean_of
from coterie.core.errors import BadInput
from coterie.core.files import place

EVERYONE = -1  # client of a row that speaks of the whole round
COLUMNS = pa.schema(
    [
        ("stage", pa.dictionary(pa.int32(), pa.string())),
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("view", pa.dictionary(pa.int32(), pa.string())),  # "personal", "global", ...
        (
            "part",
            pa.dictionary(pa.int32(), pa.string()),
        ),  # "train", "validation", "test", "" for notes and costs
        ("metric", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.float64()),
    ]
)


class Table:
    """Rows gathered in blocks while a run goes on."""

    def __init__(self, blocks: list[pa.Table] | None = None):
        self.blocks = blocks or []

    def add(
        self,
        stage: str,
        round: int,
        clients: np.ndarray,
        view: str,
        part: str,
        metric: str,
        values: np.ndarray,
    ) -> None:
        """One metric of several clients."""
        n = len(clients)

        def word(text: str) -> pa.Array:
            return pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(n, dtype=np.int32)), pa.array([text])
            )

        columns = [
            word(stage),
            pa.array(np.full(n, round, dtype=np.int32)),
            pa.array(np.asarray(clients, dtype=np.int32)),
            word(view),
            word(part),
            word(metric),
            pa.array(np.asarray(values, dtype=np.float64)),
        ]
        self.blocks.append(pa.Table.from_arrays(columns, schema=COLUMNS))

    def whole(self) -> pa.Table:
        """All rows."""
        if not self.blocks:
            return COLUMNS.empty_table()
        return (
            pa.concat_tables(self.blocks).unify_dictionaries().combine_chunks()
        )  # a search through hundreds of blocks is slow

    def write(self, path: Path) -> None:
        """Parquet, whole or not at all."""
        temporary = path.with_suffix(".part")
        pq.write_table(self.whole(), temporary, compression="zstd")
        place(temporary, path)

    @classmethod
    def read(cls, path: Path) -> Table:
        try:
            return cls([pq.read_table(path, schema=COLUMNS)])
        except (pa.ArrowException, OSError) as problem:
            raise BadInput(f"{path} cannot be read: {str(problem).splitlines()[0]}") from None


def values(
    table: pa.Table,
    metric: str,
    part: str = "test",
    view: str = "personal",
    round: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(clients, values) of one metric at one round (the last one that has it)."""
    rounds, clients, numbers = _column(table, metric, part, view)
    if not len(rounds):
        return clients, numbers
    at = rounds == (rounds.max() if round is None else round)
    order = np.argsort(clients[at], kind="stable")
    return clients[at][order], numbers[at][order]


def curve(
    table: pa.Table, metric: str, part: str = "test", view: str = "personal"
) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, mean over the clients that have the part; NaN where none has)."""
    rounds, _, numbers = _column(table, metric, part, view)
    steps = np.unique(rounds)
    return steps, np.array([mean_of(numbers[rounds == r]) for r in steps])


def best_round(table: pa.Table, measure: str = "accuracy", view: str = "personal") -> int | None:
    """The round of highest mean accuracy (or lowest mean loss) over clients on validation data, the
    earliest of equals.

    It never looks at test data; None where there are no validation data.
    """
    rounds, means = curve(table, measure, "validation", view)
    worth = np.round(
        means if measure == "accuracy" else -means, 9
    )  # digits beyond are rounding of means
    return None if np.isnan(worth).all() else int(rounds[np.nanargmax(worth)])


def total(table: pa.Table, metric: str) -> float:
    """Sum over all rounds of a cost: bytes_down, bytes_broadcast, bytes_up, steps or seconds; a row
    a round is in costs.py.
    """
    _, _, numbers = _column(table, metric, "", "")
    return float(numbers.sum())


def share(table: pa.Table, note: str) -> float:
    """Mean of a client note over all rounds and clients; NaN where nobody wrote it."""
    _, _, numbers = _column(table, note, "", "")
    return float(numbers.mean()) if len(numbers) else float("nan")


def _column(
    table: pa.Table, metric: str, part: str, view: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = table.filter(
        (pc.field("metric") == metric) & (pc.field("part") == part) & (pc.field("view") == view)
    )
    return tuple(rows[name].to_numpy() for name in ("round", "client", "value"))  # type: ignore[return-value]


class Summary(NamedTuple):
    """A measure of all clients in a few numbers."""

    mean: float
    weighted: float  # by the clients' rows in that part
    deviation: float  # sample standard deviation over clients
    worst: float


def summarize(measure: np.ndarray, rows: np.ndarray, least_is_worst: bool = True) -> Summary:
    """Mean, size-weighted mean, sample deviation and worst client; clients without the part do not
    count.
    """
    there = ~np.isnan(measure)
    a, n = measure[there], np.asarray(rows)[there]
    if not len(a):
        return Summary(*[float("nan")] * 4)
    worst = float(a.min() if least_is_worst else a.max())
    return Summary(float(a.mean()), float((a * n).sum() / n.sum()), deviation_of(a), worst)
