"""One long table, a row per (round, client, view, part, metric); everything else is computed from
it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.analysis.nan_math import deviation_of, mean_of
from coterie.analysis.scores import find_score
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file, move_into_place
from coterie.results.row_log import (
    Mark,
    append_rows,
    check_rows,
    read_mark,
    read_pieces,
    write_mark,
)

NO_ROWS = Mark()
EVERYONE = -1  # client of a row that speaks of the whole round
LEFT_OUT = "left_out"  # metric: clients per round whose update was not finite
DIVERGED = "diverged"  # metric: a client whose own model has a loss out of all bounds
COLUMNS = pa.schema(
    [
        ("stage", pa.dictionary(pa.int32(), pa.string())),
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("view", pa.dictionary(pa.int32(), pa.string())),  # "personal", "global", ...
        (
            "part",
            pa.dictionary(pa.int32(), pa.string()),
        ),  # "train", "validation", "select", "test", "" for logged quantities and costs
        ("metric", pa.dictionary(pa.int32(), pa.string())),
        ("value", pa.float64()),
    ]
)


TEXT_COLUMNS = ("stage", "view", "part", "metric")
SPILL = 2**18  # rows held in memory at most, where there is a file for them
GROUP = 2**20  # rows per group of the finished file
ROWS, MARK = "metrics.rows", "metrics.json"  # a running run's rows; in a checkpoint, which are its


class Table:
    """Rows gathered while a run goes on: compact columns in memory, and a file of those before.

    What a round costs, in memory and at a checkpoint, does not depend on the rounds before it.
    """

    def __init__(
        self, before: Sequence[pa.Table] = (), log: Path | None = None, mark: Mark = NO_ROWS
    ):
        self._before, self._log, self._mark = list(before), log, mark
        self._texts: dict[str, dict[str, int]] = {name: {} for name in TEXT_COLUMNS}  # word -> code
        self._empty()

    def _empty(self) -> None:
        self._columns = {
            field.name: array("d" if field.name == "value" else "i") for field in COLUMNS
        }

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
        if len(values) != n:
            raise ValueError(f"{len(values)} values of {metric} for {n} clients")
        for name, text in zip(TEXT_COLUMNS, (stage, view, part, metric), strict=True):
            known = self._texts[name]
            self._columns[name].extend(array("i", [known.setdefault(text, len(known))]) * n)
        self._columns["round"].extend(array("i", [round]) * n)
        self._columns["client"].frombytes(np.asarray(clients, dtype=np.int32).tobytes())
        self._columns["value"].frombytes(np.asarray(values, dtype=np.float64).tobytes())
        if self._log and len(self._columns["value"]) >= SPILL:
            self.keep(self._log)

    def _fresh(self) -> pa.Table:
        """The rows in memory."""

        def column(name: str) -> pa.Array:
            numbers = pa.array(np.array(self._columns[name]))
            if name not in TEXT_COLUMNS:
                return numbers
            texts = pa.array(list(self._texts[name]), pa.string())
            return pa.DictionaryArray.from_arrays(numbers, texts)

        return pa.Table.from_arrays([column(name) for name in COLUMNS.names], schema=COLUMNS)

    def _parts(self) -> Iterator[pa.Table]:
        yield from self._before
        if self._log and self._mark.bytes:
            yield from read_pieces(self._log, self._mark)
        yield self._fresh()

    def whole(self) -> pa.Table:
        """All rows."""
        return _concatenate_tables(list(self._parts()))

    def keep(self, log: Path) -> Mark:
        """Move the rows to a file that grows with the run; the mark says where they end."""
        if log != self._log:  # all of them, as far as they are elsewhere
            rows, self._mark = self.whole(), NO_ROWS
        else:
            rows = self._fresh()
        if len(rows):
            self._mark = append_rows(log, rows, self._mark)
            self._before = []
            self._empty()
        self._log = log
        return self._mark

    def write_mark(self, path: Path) -> None:
        """In a checkpoint: which of the rows beside it, in the run's folder, are its own."""
        write_mark(path, self.keep(path.parent.parent / ROWS))

    def write(self, path: Path) -> None:
        """Parquet, whole or not at all; groups of rows do not depend on when they were kept."""
        temporary = path.with_suffix(".part")
        waiting: list[pa.Table] = []
        with pq.ParquetWriter(temporary, COLUMNS, compression="zstd") as writer:
            for part in self._parts():
                waiting.append(part)
                while sum(map(len, waiting)) >= GROUP:
                    rows = _concatenate_tables(waiting)
                    writer.write_table(_encode_group(rows.slice(0, GROUP)), row_group_size=GROUP)
                    waiting = [rows.slice(GROUP)]
            if sum(map(len, waiting)):
                writer.write_table(
                    _encode_group(_concatenate_tables(waiting)), row_group_size=GROUP
                )
        move_into_place(temporary, path)

    @classmethod
    def read(cls, path: Path) -> Table:
        """A finished table, or that of a checkpoint by its mark."""
        if path.name == MARK:
            log, mark = path.parent.parent / ROWS, _mark_of(path)
            check_rows(log, mark)
            return cls(log=log, mark=mark)
        try:
            return cls([pq.read_table(check_regular_file(path), schema=COLUMNS)])
        except (pa.ArrowException, OSError) as problem:
            raise BadInput(f"{path} cannot be read: {str(problem).splitlines()[0]}") from None


def _mark_of(path: Path) -> Mark:
    """The mark of a checkpoint, or of the next where it has just made room for that."""
    for _ in range(10):
        found = list_checkpoints(path.parent.parent)
        if path.exists() or not found:
            break
        path = found[-1] / MARK
    return read_mark(path)


def _encode_group(rows: pa.Table) -> pa.Table:
    """The same rows with the words that occur in them, in the order in which they do."""
    columns = [
        rows[name].cast(pa.string()).combine_chunks().dictionary_encode()
        if name in TEXT_COLUMNS
        else rows[name]
        for name in COLUMNS.names
    ]
    return pa.Table.from_arrays(columns, schema=COLUMNS)


def _concatenate_tables(parts: Sequence[pa.Table]) -> pa.Table:
    """Tables as one in one chunk: a search through hundreds is slow."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def values_of(
    table: pa.Table,
    metric: str,
    part: str = "test",
    view: str = "personal",
    round: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(clients, values) of one metric at one round (the last one that has it)."""
    rounds, clients, numbers = _column_of(table, metric, part, view)
    if not len(rounds):
        return clients, numbers
    at = rounds == (rounds.max() if round is None else round)
    order = np.argsort(clients[at], kind="stable")
    return clients[at][order], numbers[at][order]


def curve_of(
    table: pa.Table, metric: str, part: str = "test", view: str = "personal"
) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, mean over the clients that have the part; NaN where none has)."""
    rounds, _, numbers = _column_of(table, metric, part, view)
    steps = np.unique(rounds)
    return steps, np.array([mean_of(numbers[rounds == r]) for r in steps])


def course(
    table: pa.Table, metric: str, part: str = "test", view: str = "personal"
) -> tuple[np.ndarray, np.ndarray]:
    """(clients, each one's mean over the rounds that have the metric)."""
    _, clients, numbers = _column_of(table, metric, part, view)
    everyone = np.unique(clients)
    return everyone, np.array([mean_of(numbers[clients == i]) for i in everyone])


def best_round(table: pa.Table, measure: str = "accuracy", view: str = "personal") -> int | None:
    """The round of best mean over clients on select rows, the earliest of equals.

    It never looks at test data; None where there are no select rows.
    """
    rounds, means = curve_of(table, measure, "select", view)
    worth = np.round(find_score(measure).sign * means, 9)  # digits beyond are rounding of means
    return None if np.isnan(worth).all() else int(rounds[np.nanargmax(worth)])


def total_of(table: pa.Table, metric: str) -> float:
    """Sum over all rounds of a cost: bytes_down, bytes_broadcast, bytes_up, steps or seconds; a row
    a round is in costs.py.
    """
    _, _, numbers = _column_of(table, metric, "", "")
    return float(numbers.sum())


def mean_logged(table: pa.Table, note: str) -> float:
    """Mean of a client quantity over all rounds and clients; NaN where nobody wrote it."""
    _, _, numbers = _column_of(table, note, "", "")
    return float(numbers.mean()) if len(numbers) else float("nan")


def _column_of(
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
