"""A run as it lies on disk: its options, its table, its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import Score, default_measure_of, find_score, scores_of
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file
from coterie.core.html import format_html_table
from coterie.core.task import choose_task, find_task
from coterie.experiment.config import Experiment
from coterie.results.folder import METRICS, read_about, read_experiment
from coterie.results.frames import as_pandas
from coterie.results.metric_table import (
    DIVERGED,
    LEFT_OUT,
    MARK,
    Summary,
    Table,
    summarize,
    total_of,
    values_of,
)
from coterie.results.models import Build
from coterie.results.newcomer_results import NewcomerResults, NewcomerRow, newcomer_rows
from coterie.results.personal_models import Models, PersonalModel, predict_rows
from coterie.results.plotting import plots_of


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run: its options, its table, its models."""

    folder: Path
    experiment: Experiment
    table: pa.Table = field(repr=False)
    about: dict[str, Any] = field(repr=False)  # run.json

    @property
    def name(self) -> str:
        return self.experiment.method

    @property
    def rows(self) -> np.ndarray:
        """[N] test rows of each client."""
        return np.array(self.about["rows"]["test"])

    @property
    def measure(self) -> str:
        """What clients are judged by: the metric that was asked for, else "accuracy" of classes,
        "mae" of numbers, "loss" where the data are vectors.
        """
        return self.experiment.schedule.metric or default_measure_of(self.task)

    @property
    def task(self) -> str:
        """What the label was learnt as."""
        return str(self.about.get("task") or choose_task(self.about["classes"]).name)

    @property
    def judged(self) -> Score:
        """What is known of that measure."""
        return find_score(self.measure)

    @property
    def part(self) -> str:
        """The part that results are shown on: "test", unless the run did not measure it."""
        parts = self.experiment.schedule.parts
        return "test" if "test" in parts else parts[-1]

    @property
    def views(self) -> list[str]:
        """The models measured at the end: "personal", and what else the method looks at."""
        last = pc.max(self.table["round"])
        rows = self.table.filter((pc.field("round") == last) & (pc.field("part") == self.part))
        return [str(view) for view in rows["view"].unique().to_pylist()]

    def accuracy(self, part: str = "test", view: str = "personal") -> np.ndarray:
        """[N] accuracy of every client at the last round; NaN without rows in the part."""
        return values_of(self.table, "accuracy", part, view)[1]

    def client_values(self, part: str = "test", view: str = "personal") -> np.ndarray:
        """[N] what clients are judged by, at the last round."""
        return values_of(self.table, self.measure, part, view)[1]

    def summary(self, part: str = "test", view: str = "personal") -> Summary:
        """Mean, size-weighted mean, sample deviation and worst client."""
        rows = np.array(self.about["rows"][part])
        found = self.client_values(part, view)
        return summarize(found, rows if len(found) else found, least_is_worst=self.judged.higher)

    @property
    def left_out(self) -> int:
        """Updates of clients that were not finite and reached nobody, in all rounds."""
        return int(total_of(self.table, LEFT_OUT))

    @property
    def left_out_clients(self) -> list[int]:
        """The clients that they were of."""
        rows = self.table.filter((pc.field("metric") == LEFT_OUT) & (pc.field("client") >= 0))
        return sorted({int(i) for i in rows["client"].to_pylist()})

    @property
    def diverged_clients(self) -> list[int]:
        """The clients whose own model is out of all bounds at the end: its loss is not finite or
        enormous, or its last update was left out.
        """
        last = pc.field("round") == pc.max(self.table["round"])
        what = pc.field("metric").isin([DIVERGED, LEFT_OUT]) & (pc.field("client") >= 0)
        found = self.table.filter(last & what)["client"].to_pylist()
        return sorted({int(i) for i in found})

    @property
    def guess(self) -> float | None:
        """The mean accuracy of always guessing the most frequent class of a client's training rows,
        on the shown part; None where it is not known.
        """
        found = self.about.get("guess", {}).get(self.part)
        return None if found is None or self.measure != "accuracy" else float(found)

    @property
    def floor(self) -> float | None:
        """What whoever knows nothing reaches, of what clients are judged by; None: not known."""
        if self.measure == "accuracy" and self.guess is not None:
            return self.guess
        return self.trivial.get(self.measure) if self.part == "test" else None

    @property
    def knows_nothing(self) -> str:
        """Who that is."""
        return find_task(self.task).describe_trivial(self.measure)

    @property
    def trivial(self) -> dict[str, float]:
        """{score: mean over clients on test rows} of whoever knows nothing but a client's training
        targets: the most frequent class, the mean or the median.
        """
        return dict(self.about.get("trivial", {}))

    @property
    def scored(self) -> list[str]:
        """The scores that the end of a run measures beside what it is judged by."""
        known = scores_of(self.task)
        return [s.name for s in known if s.name not in ("accuracy", self.measure)]

    def scores(self) -> dict[str, float]:
        """{score: mean over the clients' own models on the shown part}, of the scores that were
        measured at the end.
        """
        found = {name: mean_of(values_of(self.table, name, self.part)[1]) for name in self.scored}
        return {name: value for name, value in found.items() if value == value}

    @property
    def came(self) -> NewcomerResults:
        """What is known of the clients that were kept out of training."""
        return NewcomerResults(self.table, self.about, self.judged)

    def newcomers(self, rows: int | None = None) -> list[NewcomerRow]:
        """How well newcomers were served, one row per way of getting a model: by the method's rule,
        by fine-tuning its global model, by training alone; [] where there were none.

        rows: one of the numbers of `few_shot`; None: with all their training rows.
        """
        return newcomer_rows([self.came], rows)

    def models(self, build: Build | None = None) -> Models:
        """The clients' own models, as they lie on disk now."""
        return Models(self.folder, build)

    def model(self, client: int | str, build: Build | None = None) -> PersonalModel:
        """A client's own model, by its number or name, with `predict` and `predict_proba`;
        `build` makes a network that is not coterie's own.
        """
        return self.models(build).model(client)

    def predict(self, rows: Any, clients: str | Sequence[str] = "client") -> np.ndarray:
        """[n] what each row's own client's model says of it.

        clients: the column that names the client of a row, or the name of every row's client.
        """
        return predict_rows(self.models().model, rows, clients)

    def to_pandas(self) -> Any:
        """All that was measured as a pandas frame: a row per round, client, view, part and
        metric."""
        return as_pandas(self.table)

    @property
    def plot(self) -> Any:
        """Figures of the report: `run.plot.curves()`, `.clients()`, `.scores()`, or
        `.figure(key)` of any in `.keys`.
        """
        return plots_of(self.folder)

    def _repr_html_(self) -> str:
        """The summary of every view, for notebooks."""
        judged = self.judged
        rows = [[view, *map(judged.text, self.summary(self.part, view))] for view in self.views]
        caption = (
            f"{self.name}: {self.part} {judged.label}{judged.unit} of {len(self.rows):,} clients "
            f"after round {pc.max(self.table['round']).as_py():,} ({self.folder})"
        )
        return format_html_table(["model", *Summary._fields], rows, caption)


def load_run(folder: Path) -> Run:
    """A run from its folder; one that was stopped as it stood at its last checkpoint."""
    known = read_about(folder)
    found = [
        p
        for p in (folder / METRICS, *(c / MARK for c in reversed(list_checkpoints(folder))))
        if p.exists()
    ]
    if not found:
        raise BadInput(f"{folder} has no metrics yet: `coterie resume {folder}` goes on with it")
    return Run(folder, read_experiment(folder), _read_first(found).whole(), known)


def _read_first(paths: list[Path]) -> Table:
    """The table of the first path; of a checkpoint that is damaged, that of the one before."""
    try:
        return Table.read(check_regular_file(paths[0]))
    except BadInput:
        if paths[0].parent.name.startswith("checkpoint-") and paths[1:]:
            return _read_first(paths[1:])
        raise
