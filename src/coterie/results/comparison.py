"""What a comparison found: one row per method, client by client underneath."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from coterie.analysis.answer import Answer, Measure, MethodCost, find_answer, measure_of
from coterie.analysis.nan_math import mean_of
from coterie.analysis.significance import (
    Difference,
    RankTable,
    build_rank_table,
    mean_interval,
    paired_difference,
)
from coterie.core.errors import BadInput, suggest_name
from coterie.core.files import check_regular_file, path_exists, read_text, write_text
from coterie.core.html import format_html_table, format_paragraph
from coterie.results.about import partition_of
from coterie.results.costs import rounds_to_reach
from coterie.results.frames import as_pandas
from coterie.results.guard_summary import format_guard
from coterie.results.metric_table import best_round, curve_of, total_of, values_of
from coterie.results.newcomer_results import NewcomerRow, newcomer_rows
from coterie.results.plotting import plots_of
from coterie.results.run import Run

REFERENCES = "references.json"  # what scikit-learn reaches on the same rows
SHOWN = 3  # clients that a line names
TIE = 1e-9  # accuracies that differ by less are the same


class ReferenceRow(NamedTuple):
    """What scikit-learn reaches on the same rows; it is no federated learning."""

    name: str  # "alone" or "pooled"
    mean: float  # over clients, of the seeds' means
    worst: float
    model: str  # which model most clients have
    clients: int  # that were measured


class MethodRow(NamedTuple):
    """One method over all seeds: the mean over seeds of each seed's figure; accuracies are losses
    where there are no classes.
    """

    method: str
    mean: float  # over clients
    low: float  # 95 % interval of `mean` over seeds, by Student's t; NaN with one seed
    high: float
    spread: float  # deviation of `mean` over seeds; NaN with one seed
    weighted: float  # by test rows
    deviation: float  # over clients, sample
    worst: float
    select: float  # `mean` on the rows that choose
    at_best: float  # `mean` at the round that is best on select rows; NaN where there are none
    best_round: float
    bytes_down: float  # a run, all clients
    bytes_broadcast: float  # the same with what is alike for several clients sent once
    bytes_up: float
    steps: float  # client-steps per run
    gradients: float  # evaluations in them
    seconds: float  # a round, without evaluation
    left_out: float  # updates that were not finite, a run


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison, by method and seed."""

    folder: Path
    runs: dict[str, list[Run]]  # of the methods that came to their end with every seed
    diverged: dict[str, str] = field(default_factory=dict)  # {method: seed, round and cause}

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))[0]

    def rows(self) -> list[MethodRow]:
        """One row per method, in the order they were asked for."""
        return [_build_row(name, runs) for name, runs in self.runs.items()]

    def accuracy(self, method: str, part: str = "test", view: str = "personal") -> np.ndarray:
        """[seeds, clients] accuracy of every client's own model, or of another view such as
        "global" (see `views`).
        """
        self._check(method, view)
        return np.stack([run.accuracy(part, view) for run in self.runs[method]])

    def client_values(self, method: str, view: str = "personal", best: bool = False) -> np.ndarray:
        """[seeds, clients] of what the comparison is judged by, at the last round or at each seed's
        best on select rows.
        """
        self._check(method, view)
        runs = self.runs[method]
        rounds = (
            [best_round(run.table, run.measure) for run in runs] if best else [None] * len(runs)
        )
        if best and None in rounds:
            raise BadInput(
                f"{method} has no best round, as there are no select rows: raise --validation"
            )
        return np.stack(
            [_values_of_run(run, round, view) for run, round in zip(runs, rounds, strict=True)]
        )

    def views(self, method: str) -> list[str]:
        """The models of a method that were measured: "personal", and "global" and others where it
        has them.
        """
        self._check(method, "personal")
        return self.runs[method][0].views

    def _check(self, method: str, view: str) -> None:
        if method not in self.runs:
            raise BadInput(f"method '{method}' was not compared{suggest_name(method, self.runs)}")
        known = self.runs[method][0].views
        if view not in known:
            raise BadInput(f"{method} has no view '{view}': it has {', '.join(known)}")

    @property
    def fixed_partition(self) -> bool:
        """Whether every seed gave the same rows to the same clients, whichever of them it tests."""
        runs = [run for each in self.runs.values() for run in each]
        return len({(partition_of(run.about), *run.about["clients"]) for run in runs}) == 1

    @cached_property
    def answer(self) -> Answer | None:
        """What to use, chosen on select rows, and what test rows show of it; as text, its
        sentences. None where nothing is compared, or test rows were not measured.
        """
        if len(self.runs) + len(self.diverged) < 2 or self.first.part != "test":
            return None
        spent = {
            row.method: MethodCost(row.bytes_down + row.bytes_up, row.gradients)
            for row in self.rows()
        }
        sound = {name: runs for name, runs in self.runs.items() if name not in self.partly_diverged}
        if not sound:
            return None
        test = {name: self.client_values(name) for name in sound}
        select = {
            name: np.stack([run.client_values("select") for run in runs])
            for name, runs in sound.items()
        }
        votes = {name: a for name, a in select.items() if a.size and not np.isnan(a).all()}
        if len(votes) < len(select):
            votes = {}  # of another version, or without such rows: nobody votes
        found = find_answer(
            test,
            votes,
            spent,
            self.fixed_partition,
            self.measure,
            mean_of([nan if run.floor is None else run.floor for run in self._first_runs]),
            self.first.knows_nothing,
        )
        best = max(self._sign * mean_of([mean_of(s) for s in block]) for block in test.values())
        said = self._compare_references(self._sign * best)
        return found._replace(remarks=(*said, *self.remarks()))

    @cached_property
    def references(self) -> list[ReferenceRow]:
        """What scikit-learn reaches alone and pooled, where it was measured by the same score."""
        runs = self._first_runs
        path = runs[0].folder.parent / REFERENCES
        known = json.loads(read_text(path)) if path.is_file() else {}
        seeds = [known.get("seeds", {}).get(str(run.experiment.seed), {}) for run in runs]
        if known.get("measure") != self.first.measure or not all(seeds):
            return []
        return [_build_reference(name, [s[name] for s in seeds], self._sign) for name in seeds[0]]

    def _compare_references(self, best: float) -> list[str]:
        """How methods stand beside scikit-learn."""
        write, rows = self.measure.write, {row.name: row for row in self.references}
        if not rows:
            return []
        alone, pooled = rows["alone"], rows["pooled"]
        some = "" if alone.clients == len(self.first.rows) else f" of {alone.clients:,} clients"
        together = f"{write(pooled.mean)} on pooled rows ({pooled.model})"
        if self._sign * (alone.mean - best) > TIE:
            return [
                f"Without federated learning, {alone.model} of scikit-learn alone{some} reaches "
                f"{write(alone.mean)}; no method shown here does. It has {together}."
            ]
        return [
            f"Without federated learning, scikit-learn reaches {write(alone.mean)} alone{some} "
            f"({alone.model}) and {together}."
        ]

    @cached_property
    def partly_diverged(self) -> dict[str, str]:
        """{method: for how many clients it diverged, and for whom}; it is neither chosen nor
        compared with.
        """
        found = {}
        for name, runs in self.runs.items():
            lost = sorted({i for run in runs for i in run.diverged_clients})
            if lost:
                some = [str(runs[0].about["clients"][i]) for i in lost[:SHOWN]]
                more = ["..."] if len(lost) > SHOWN else []
                who = ", ".join(some + more)
                found[name] = f"{len(lost):,} of {len(runs[0].rows):,} clients ({who})"
        return found

    @property
    def measure(self) -> Measure:
        """What clients are judged by."""
        return measure_of(self.first.judged)

    @property
    def _first_runs(self) -> list[Run]:
        return next(iter(self.runs.values()))

    def remarks(self) -> list[str]:
        """What went wrong: who diverged, whose updates were left out, who learned nothing."""
        said = [
            f"{name} diverged and is not compared ({why})." for name, why in self.diverged.items()
        ]
        said += [
            f"{name} diverged for {whom}: it is neither chosen nor compared with; lower "
            f"--{name}.lr, or mend rows that lie far out."
            for name, whom in self.partly_diverged.items()
        ]
        # one line for all methods that have it in common
        guarded = {
            line: [n for n, runs in self.runs.items() if line in format_guard(runs[0])]
            for runs in self.runs.values()
            for line in format_guard(runs[0])
        }
        for line, names in guarded.items():
            said.append(line if len(names) == len(self.runs) else f"{', '.join(names)}: {line}")
        for name, runs in self.runs.items():
            count = sum(run.left_out for run in runs)
            if count and name not in self.partly_diverged:
                updates = "1 update was" if count == 1 else f"{count:,} updates were"
                said.append(f"{name}: {updates} not finite and left out.")
        poor = [name for name, runs in self.runs.items() if _is_trivial(runs)]
        if poor:
            verb = "is" if len(poor) == 1 else "are"
            floor = mean_of([nan if r.floor is None else r.floor for r in self.runs[poor[0]]])
            judged = self.first.judged
            number = f"{100 * floor:.1f} %" if judged.share else judged.text(floor)
            said.append(
                f"{', '.join(poor)} {verb} no better than {self.first.knows_nothing} ({number})."
            )
        return said

    def ranks(self) -> RankTable:
        """Methods by mean rank, and which are significantly better than which; where there are no
        classes, of minus the loss.
        """
        return build_rank_table(
            {name: self._sign * self.client_values(name) for name in self.runs},
            self.fixed_partition,
        )

    def scores(self) -> dict[str, dict[str, float]]:
        """{method: {score: mean over seeds of the mean over clients}}, of the scores that any run
        measured.
        """
        found = {name: [run.scores() for run in runs] for name, runs in self.runs.items()}
        known = list(dict.fromkeys(s for runs in found.values() for each in runs for s in each))
        return {
            name: {s: mean_of([each.get(s, nan) for each in runs]) for s in known}
            for name, runs in found.items()
        }

    def rounds_to(self, target: float) -> dict[str, int | None]:
        """The first measured round whose mean over clients and seeds reaches the target; None where
        none does.

        The target is a share of the shown part (test), a loss to come down to where there are no
        classes. It is a measure of speed, and chooses nothing.
        """
        judged = self.first.judged
        if judged.share and not 0 <= target <= 1:
            raise BadInput(f"target = {target:g}: give an {judged.label} from 0 to 1")
        sign, found = self._sign, {}
        for name, runs in self.runs.items():
            curves = [curve_of(run.table, run.measure, run.part) for run in runs]
            found[name] = rounds_to_reach(
                curves[0][0], sign * np.mean([means for _, means in curves], axis=0), sign * target
            )
        return found

    def difference(self, method: str, other: str) -> Difference:
        """How much better `method` serves a client than `other`, on the measured part, with its
        interval; above 0 is better.
        """
        return paired_difference(
            self._sign * self.client_values(method),
            self._sign * self.client_values(other),
            self.fixed_partition,
        )

    def newcomers(self, rows: int | None = None) -> dict[str, list[NewcomerRow]]:
        """{method: how well newcomers were served, as in `Run.newcomers`}; {} without newcomers.

        The intervals are over newcomers, of all seeds together.
        """
        found = {
            name: newcomer_rows([run.came for run in runs], rows)
            for name, runs in self.runs.items()
        }
        return {name: mine for name, mine in found.items() if mine}

    def to_pandas(self, of: Literal["methods", "clients"] = "methods") -> Any:
        """The columns of table.csv as a pandas frame, a row per method; of "clients": those of
        clients.csv, a row per method, seed and client.
        """
        if of not in ("methods", "clients"):
            raise BadInput(f"of = {of!r}: give 'methods' or 'clients'")
        rows = _build_client_rows(self) if of == "clients" else _build_method_rows(self)
        return as_pandas(pa.Table.from_pylist(rows))

    @property
    def plot(self) -> Any:
        """Figures of the report: `result.plot.curves()`, `.forest()`, `.scores()`, `.clients()`, or
        `.figure(key)` of any in `.keys`.
        """
        return plots_of(self.folder)

    def _repr_html_(self) -> str:
        """The answer and a short table of methods, for notebooks."""
        judged = self.first.judged
        rows = sorted(self.rows(), key=lambda row: -self._sign * row.mean)
        cells = [
            [
                row.method,
                *map(judged.text, (row.mean, row.deviation, row.worst)),
                f"{_traffic_of(row):.2f}",
            ]
            for row in rows
        ]
        found = self.answer
        said = [format_paragraph(text) for text in self.remarks()] if found is None else []
        caption = (
            f"{self.first.part.capitalize()} {judged.label}{judged.unit} of "
            f"every client's own model: {len(self.first.rows):,} clients, "
            f"{len(next(iter(self.runs.values())))} seeds"
        )
        heads = ["method", "mean", "deviation over clients", "worst client", "MB"]
        return "".join(
            [found._repr_html_() if found else "", *said, format_html_table(heads, cells, caption)]
        )

    @property
    def _sign(self) -> int:
        """What makes more of the measure better."""
        return self.first.judged.sign


def _build_reference(name: str, found: list[dict[str, Any]], sign: int) -> ReferenceRow:
    """One reference over all seeds."""
    blocks = [sign * np.array(one["values"], dtype=float) for one in found]
    kinds: dict[str, int] = {}
    for one in found:
        for kind, count in one["models"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    return ReferenceRow(
        name,
        sign * mean_of([mean_of(block) for block in blocks]),
        sign * mean_of([float(np.nanmin(block)) for block in blocks]),
        max(kinds, key=lambda kind: kinds[kind]),
        int((~np.isnan(blocks[0])).sum()),
    )


def _is_trivial(runs: list[Run]) -> bool:
    """Whether a method, as a mean over seeds, is no better than whoever knows nothing."""
    if any(run.floor is None for run in runs):
        return False
    sign = runs[0].judged.sign
    gains = [sign * (mean_of(run.client_values(run.part)) - (run.floor or 0.0)) for run in runs]
    return mean_of(gains) <= TIE


def _values_of_run(run: Run, round: int | None = None, view: str = "personal") -> np.ndarray:
    """[N] what a run is judged by, at a round (the last one); what is not finite is no number."""
    found = values_of(run.table, run.measure, run.part, view, round)[1]
    return np.where(np.isfinite(found), found, nan)


def _best_value_of(run: Run) -> tuple[float, float]:
    """(mean, round) at the round that is best on select rows."""
    found = best_round(run.table, run.measure)
    return (nan, nan) if found is None else (mean_of(_values_of_run(run, found)), found)


def _build_row(name: str, runs: list[Run]) -> MethodRow:
    tests = [run.summary(run.part) for run in runs]
    means = np.array([t.mean for t in tests])
    interval = mean_interval(means)

    def over(f: Callable[[Run], float]) -> float:
        return float(np.mean([f(run) for run in runs]))

    return MethodRow(
        name,
        float(means.mean()),
        interval.low,
        interval.high,
        float(means.std(ddof=1)) if len(means) > 1 else nan,
        float(np.mean([t.weighted for t in tests])),
        float(np.mean([t.deviation for t in tests])),
        float(np.mean([t.worst for t in tests])),
        over(lambda r: mean_of(r.client_values("select"))),
        over(lambda r: _best_value_of(r)[0]),
        over(lambda r: _best_value_of(r)[1]),
        over(lambda r: total_of(r.table, "bytes_down")),
        over(lambda r: total_of(r.table, "bytes_broadcast")),
        over(lambda r: total_of(r.table, "bytes_up")),
        over(lambda r: total_of(r.table, "steps")),
        over(lambda r: total_of(r.table, "gradients")),
        over(lambda r: total_of(r.table, "seconds") / r.table["round"].to_numpy().max()),
        over(lambda r: r.left_out),
    )


def _traffic_of(row: MethodRow) -> float:
    """Megabytes down and up."""
    return (row.bytes_down + row.bytes_up) / 1e6


def _build_method_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """What table.csv has, row by row; a method that diverged has no figures."""
    scores, partly = comparison.scores(), comparison.partly_diverged
    rows = [
        row._asdict() | scores[row.method] | {"diverged": partly.get(row.method, "")}
        for row in comparison.rows()
    ]
    return rows + [{"method": name, "diverged": why} for name, why in comparison.diverged.items()]


def _build_client_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """What clients.csv has, row by row."""
    head = f"{comparison.first.part}_{comparison.first.measure}"
    return [
        {
            "method": name,
            "seed": run.experiment.seed,
            "client": i,
            "name": str(run.about["clients"][i]),
            head: float(value),
        }
        for name, runs in comparison.runs.items()
        for run in runs
        for i, value in enumerate(run.client_values(run.part))
    ]


def write_csv(comparison: Comparison) -> None:
    """The table, every client's accuracy and that of newcomers, beside the runs."""
    late = [
        {"method": name} | row._asdict()
        for name, found in comparison.newcomers().items()
        for row in found
    ]
    clients = [
        {k: f"{v:.6f}" if isinstance(v, float) else v for k, v in row.items()}
        for row in _build_client_rows(comparison)
    ]
    _write_rows(comparison.folder / "table.csv", _build_method_rows(comparison))
    _write_rows(comparison.folder / "clients.csv", clients)
    if late:
        _write_rows(comparison.folder / "newcomers.csv", late)


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV with the columns of its first row, whole or not at all."""
    if path_exists(path):
        check_regular_file(path)  # to open a pipe would wait for ever
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
