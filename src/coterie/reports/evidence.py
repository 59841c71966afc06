"""What a report is made of: one run per method and seed, with the same seeds for every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coterie.analysis.nan_math import nan_mean
from coterie.analysis.scores import Score
from coterie.core.quantities import LoggedQuantity, from_json
from coterie.results.about import CHECKSUMS
from coterie.results.comparison import Comparison, MethodRow
from coterie.results.data_files import find_damaged
from coterie.results.false_accepts import SCORES
from coterie.results.folder import SPLIT
from coterie.results.metric_table import DIVERGED, EVERYONE, LEFT_OUT
from coterie.results.run import Run

SIDE_FILES = (SPLIT, SCORES)  # what a report reads beside the table of a run
Key = tuple[str, str, str]  # view, part, metric


class MetricColumn(NamedTuple):
    """All rows of one metric, round by round."""

    rounds: np.ndarray
    clients: np.ndarray
    values: np.ndarray


def split_columns(table: pa.Table) -> dict[Key, MetricColumn]:
    """The long table taken apart once, as a report asks for most of its metrics."""
    whole = table.unify_dictionaries().combine_chunks()
    words, code = [], np.zeros(len(whole), dtype=np.int64)
    for name in ("view", "part", "metric"):
        column = whole[name].combine_chunks()
        words.append(column.dictionary.to_pylist())
        code = code * max(1, len(words[-1])) + column.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(code, kind="stable")
    code = code[order]
    rest = [whole[name].to_numpy()[order] for name in ("round", "client", "value")]
    found = {}
    for k in np.split(np.arange(len(code)), np.flatnonzero(np.diff(code)) + 1) if len(code) else ():
        at, cut = int(code[k[0]]), slice(k[0], k[-1] + 1)
        at, m = divmod(at, len(words[2]))
        v, p = divmod(at, len(words[1]))
        found[words[0][v], words[1][p], words[2][m]] = MetricColumn(
            *(column[cut] for column in rest)
        )
    return found


@dataclass(frozen=True)
class RunRecord:
    """A run and its columns."""

    run: Run
    columns: Mapping[Key, MetricColumn]

    @cached_property
    def slim(self) -> Run:
        """The run with nothing in its table but what own models reach and what rounds cost.

        That is a hundredth of it where clients write logged quantities.
        """
        parts = pc.field("part").isin([self.run.part, "validation", "select"])
        wanted = pc.field("metric").isin([self.run.measure, *self.run.scored])
        marks = pc.field("metric").isin([DIVERGED, LEFT_OUT])
        own = (pc.field("view") == "personal") & (marks | (parts & wanted))
        return replace(
            self.run, table=self.run.table.filter(own | (pc.field("client") == EVERYONE))
        )

    @cached_property
    def damage(self) -> list[str]:
        """The files beside the table that are missing or not as they were written."""
        known = self.run.about.get(CHECKSUMS, {})
        there = [name for name in SIDE_FILES if name in known]
        return [name for name in there if find_damaged(self.run.folder, {name: known[name]})]

    @property
    def clients(self) -> int:
        return len(self.run.about["clients"])

    @property
    def finished(self) -> bool:
        return bool(self.run.about["status"] == "finished")

    @property
    def round(self) -> int:
        """The last round in the table."""
        return int(max((c.rounds.max() for c in self.columns.values()), default=0))

    def block(self, metric: str, part: str = "", view: str = "") -> tuple[np.ndarray, np.ndarray]:
        """(rounds [R], values [R, N]) of a metric that clients have; NaN where one has none, or
        none that is finite.
        """
        column = self.columns.get((view, part, metric))
        if column is None:
            return np.zeros(0, dtype=int), np.full((0, self.clients), np.nan)
        own = column.clients >= 0
        rounds, at = np.unique(column.rounds[own], return_inverse=True)
        out = np.full((len(rounds), self.clients), np.nan)
        values = column.values[own]
        out[at, column.clients[own]] = np.where(np.isfinite(values), values, np.nan)
        return rounds, out

    def last(self, metric: str, part: str = "", view: str = "") -> np.ndarray:
        """[N] every client's latest value; a sampled client may have written it rounds ago."""
        _, block = self.block(metric, part, view)
        out = np.full(self.clients, np.nan)
        for row in block:
            out = np.where(np.isnan(row), out, row)
        return out

    @cached_property
    def stages(self) -> list[tuple[str, int]]:
        """(name, first round) of every stage."""
        firsts = self.run.table.group_by("stage").aggregate([("round", "min")])
        return sorted(
            zip(firsts["stage"].to_pylist(), firsts["round_min"].to_pylist(), strict=True),
            key=lambda pair: pair[1],
        )

    @property
    def views(self) -> list[str]:
        """The models that were measured at the last round, the clients' own first."""
        found = [
            view
            for (view, part, metric) in self.columns
            if metric == self.run.measure and part == self.run.part
        ]
        return sorted(found, key=lambda view: (view != "personal", view))

    @cached_property
    def describes(self) -> dict[str, LoggedQuantity]:
        """What the method's logged quantities and views mean, as the run wrote it down."""
        return from_json(self.run.about.get("notes", {}))

    @cached_property
    def notes(self) -> list[str]:
        """What clients wrote down, by name."""
        return [
            m
            for (view, part, m), c in self.columns.items()
            if not view and not part and (c.clients >= 0).any()
        ]


@dataclass(frozen=True)
class Evidence:
    """Every method's runs, one per seed and the same seeds for all; what is wrong with others."""

    records: dict[str, list[RunRecord]]
    seeds: list[int]
    warnings: list[str]
    diverged: dict[str, str] = field(default_factory=dict)  # {method: why it is not shown}

    @property
    def methods(self) -> list[str]:
        return list(self.records)

    @property
    def first(self) -> Run:
        return next(iter(self.records.values()))[0].run

    @property
    def names(self) -> list[str]:
        return [str(name) for name in self.first.about["clients"]]

    @property
    def judged(self) -> Score:
        """What clients are judged by."""
        return self.first.judged

    @property
    def scale(self) -> float:
        return 100.0 if self.judged.share else 1.0

    @property
    def unit(self) -> str:
        return "%" if self.judged.share else ""

    @cached_property
    def fixed_partition(self) -> bool:
        return self.comparison.fixed_partition

    @cached_property
    def comparison(self) -> Comparison:
        """The runs as a comparison of their own, for all that is computed of one."""
        return Comparison(
            Path(),
            {name: [r.slim for r in records] for name, records in self.records.items()},
            self.diverged,
        )

    @cached_property
    def rows(self) -> list[MethodRow]:
        """The comparison's row of every method."""
        return self.comparison.rows()

    def client_values(
        self, name: str, part: str | None = None, view: str = "personal"
    ) -> np.ndarray:
        """[seeds, N] accuracy (share) or loss at the last round; NaN where there is none."""
        part = part or self.first.part
        return np.stack([r.last(self.first.measure, part, view) for r in self.records[name]])

    def clientwise(self, name: str, view: str = "personal") -> np.ndarray:
        """[N] means over seeds that have the same clients, else the first seed's values."""
        block = self.client_values(name, view=view)
        return nan_mean(block, 0) if self.fixed_partition else block[0]

    def counts(self) -> tuple[list[int], np.ndarray] | None:
        """(labels [K], rows [N, K]) of the first seed, all parts together; None where unknown."""
        path = self.first.folder / SPLIT
        if not path.is_file() or SPLIT in next(iter(self.records.values()))[0].damage:
            return None
        try:
            table = pq.read_table(path, columns=["client", "label", "rows"])
            client, label, rows = (table[c].to_numpy() for c in ("client", "label", "rows"))
        except (pa.ArrowException, OSError, KeyError):
            return None
        if len(client) and not (client.min() >= 0 and client.max() < len(self.names)):
            return None  # of other clients: damaged
        labels = np.unique(label)
        out = np.zeros((len(self.names), len(labels)), dtype=int)
        np.add.at(out, (client, np.searchsorted(labels, label)), rows)
        return [int(k) for k in labels], out
