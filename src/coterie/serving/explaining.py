"""What the models of a run look at and how sure they are: importance of columns and dependence on
them, calibration, and conformal sets or intervals, per client and over clients.

Temperatures and quantiles are fitted on rows that no training has seen (validation and select rows;
select rows alone where the method chooses on the others); importance, reliability and coverage are
measured on test rows, of which nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coterie.analysis.calibration import (
    ReliabilityBin,
    calibration_gap,
    class_scores,
    conformal_quantile,
    fit_temperature,
    least_rows,
    prediction_sets,
    reliability_curve,
    scale_probabilities,
)
from coterie.analysis.explanation import partial_dependence, permutation_importance
from coterie.analysis.intervals import share_interval
from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import default_measure_of, find_score, score_task
from coterie.core.errors import BadInput
from coterie.core.rng import stream
from coterie.core.task import find_task
from coterie.data.federation import PARTS, part_of
from coterie.data.messages import silence
from coterie.data.prepare.preparation import FittedColumn
from coterie.data.read.columns import TEXT
from coterie.data.target import task_of
from coterie.experiment.build import Given
from coterie.experiment.config import Experiment
from coterie.methods.needs import needs_of
from coterie.methods.registry import METHODS
from coterie.results.data_files import PREPARATION, read_preparation
from coterie.results.explained import EXPLAINED, ColumnImportance, ExplainedColumns, write_explained
from coterie.results.folder import read_about, read_experiment
from coterie.results.models import Build
from coterie.results.personal_models import Models, PersonalModel, run_module
from coterie.results.sureness import Sureness, write_sureness
from coterie.serving.labelled_rows import load_trained_rows

REPEATS = 5  # permutations of a column
LEAST_HELD = 100  # held rows from which on a client has a temperature of its own
MAX_VALUES = 8  # values of a column that dependence is shown at
MAX_INPUTS = 2000  # inputs beyond which columns are not explained one by one
QUICK_CALLS = 2000  # permutations in a quick look at a run
QUICK_TEST = 500  # test rows of a client in it
QUICK_ROWS = 100_000  # rows of a run beyond which there is none, as reading them takes longer


class Dependence(NamedTuple):
    """What a client's model says on average where a column has some value in all its rows."""

    column: str
    values: list[str]
    answers: np.ndarray  # [values] the mean number, or [values, K] mean probabilities


class Explanation(NamedTuple):
    """One client's model on its own test rows."""

    client: str
    rows: int  # test rows
    importance: dict[str, float]  # {column: loss of score where it is permuted}
    dependence: list[Dependence]  # of the columns that matter most
    reliability: list[ReliabilityBin]  # before the temperature; empty where there are no classes
    gap: float  # expected calibration error before, on test rows; NaN where there are no classes
    gap_after: float
    sureness: Sureness


class Explained(NamedTuple):
    """All clients, and what they were explained by."""

    measure: str
    columns: list[str]
    clients: list[Explanation]
    curve: list[ReliabilityBin]  # of all clients' test rows, before the temperatures
    curve_after: list[ReliabilityBin]


class _Client(NamedTuple):
    """One client's model and rows."""

    number: int
    model: PersonalModel
    test: np.ndarray
    held: np.ndarray  # rows to calibrate on


class _Explainer:
    """The rows of a run, and functions of its models on them."""

    def __init__(self, folder: Path, given: Given, build: Build | None) -> None:
        self.folder, self.models = folder, Models(folder, build)
        self.experiment: Experiment = read_experiment(folder)
        self.federation = load_trained_rows(folder, self.experiment, given)
        self.x = self.federation.x.numpy()
        kind = self.federation.target.task
        self.task = find_task(kind)
        if self.x.ndim != 2 or self.federation.words or self.x.shape[1] > MAX_INPUTS:
            raise BadInput(
                f"{folder}: rows are {list(self.x.shape[1:])}: what is explained are tables with "
                f"columns (at most {MAX_INPUTS:,} inputs)"
            )
        if self.task.reference is None and not (self.task.has_classes or self.task.is_number):
            raise BadInput(f"{folder}: task '{kind}' is not explained: classes and numbers are")
        self.y = task_of(self.federation.target).truth(self.federation.y).numpy()
        self.measure = self.experiment.schedule.metric or default_measure_of(kind)
        if self.measure not in score_task(kind, np.zeros(0), np.zeros(0)):
            self.measure = default_measure_of(kind)

    @cached_property
    def held_parts(self) -> tuple[str, ...]:
        """The parts to calibrate on: held rows that neither training nor the method has used."""
        builder = METHODS.get(self.experiment.method.split("@")[0])
        chooses = builder is None or "validation" in needs_of(builder)
        if self.experiment.dataset.get("refit") and not chooses:
            raise BadInput(
                f"{self.folder} was trained with refit, on its validation rows too: no rows are "
                "left to calibrate on; run it without refit"
            )
        return ("select",) if chooses else ("validation", "select")

    @cached_property
    def groups(self) -> list[tuple[str, list[int]]]:
        """(column, its inputs)"""
        kept = self.federation.preparation
        columns: Sequence[FittedColumn] = kept.columns if kept and not kept.shape else ()
        if not columns:
            return [(str(k), [k]) for k in range(self.x.shape[1])]
        ends = np.cumsum([0, *(len(column.outputs) for column in columns)])
        return [
            (column.name, list(range(int(ends[k]), int(ends[k + 1]))))
            for k, column in enumerate(columns)
        ]

    def client(self, number: int) -> _Client:
        held = [np.asarray(part_of(self.federation, p)[number]) for p in self.held_parts]
        return _Client(
            number=number,
            model=self.models.model(number),
            test=np.asarray(self.federation.test[number]),
            held=np.concatenate(held).astype(int),
        )

    def said(self, model: PersonalModel, x: np.ndarray) -> np.ndarray:
        """[n, K] probabilities or [n] numbers."""
        with torch.no_grad():
            outputs = run_module(model.module, np.ascontiguousarray(x))
            return model.task.learnt.predict(outputs).numpy().astype(float)

    def score(self, model: PersonalModel, rows: np.ndarray, x: np.ndarray) -> float:
        """The measure, more is better."""
        value = score_task(self.task.name, self.y[rows], self.said(model, x), [self.measure])
        return find_score(self.measure).sign * value[self.measure]

    def strangeness(self, said: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """[n] nonconformity scores."""
        if self.task.has_classes:
            return class_scores(said, self.y[rows])
        return np.abs(said - self.y[rows])

    def importance(self, one: _Client) -> dict[str, float]:
        if len(one.test) < 2:
            return {name: float("nan") for name, _ in self.groups}
        x = self.x[one.test]
        return {
            name: permutation_importance(
                lambda mixed: self.score(one.model, one.test, mixed),
                x,
                inputs,
                REPEATS,
                stream(self.experiment.seed, "explain", one.model.client, name),
            )
            for name, inputs in self.groups
        }

    def dependence(self, one: _Client, columns: Sequence[str]) -> list[Dependence]:
        """Of the model's answers on its test rows, at values that its training rows have."""
        known, train = dict(self.groups), np.asarray(self.federation.train[one.number])
        kept = self.federation.preparation
        fitted = {c.name: c for c in kept.columns} if kept else {}
        own = kept.clients.get(one.model.client) if kept and kept.clients else None
        found = []
        for name in columns:
            inputs = known[name]
            values = np.unique(self.x[np.ix_(train, np.asarray(inputs))], axis=0)
            if len(inputs) > 1:
                values = values[::-1]  # categories in their order
            if len(values) > MAX_VALUES:
                places = np.linspace(0, len(values) - 1, MAX_VALUES).round().astype(int)
                values = values[places]
            answers = partial_dependence(
                lambda x: self.said(one.model, x), self.x[one.test], inputs, values
            )
            column = None if own else fitted.get(name)
            names = [name_value(value, column) for value in values]
            found.append(Dependence(name, names, answers))
        return found


def name_value(value: np.ndarray, column: FittedColumn | None) -> str:
    """What the inputs of a column stand for."""
    if column is None or column.buckets or column.kind == "date":
        return f"{value[0]:.3g}"
    if column.indicator and value[-1] > 0:
        return "missing"
    if column.kind == "category":
        return column.outputs[int(np.argmax(value))].partition(" = ")[2]
    return f"{value[0] * (column.spread or 1) + column.centre:.4g}"


def explain(
    folder: Path,
    client: int | str | None = None,
    confidence: float = 0.9,
    given: Given = None,
    build: Build | None = None,
    shown: int = 3,
) -> Explained:
    """Explain the models of all clients, or of one, on their test rows, and write down how sure
    they are (sureness.json of the run's folder), from then on known to the models of all clients.

    shown: how many columns have their dependence computed, where one client is named.
    """
    if not 0.5 <= confidence < 1:
        raise BadInput(f"confidence = {confidence:g}: give one from 0.5 to 0.99")
    rows = _Explainer(folder, given, build)
    asked = None if client is None else rows.models.number(client)
    if asked is not None and asked >= rows.federation.clients:
        raise BadInput(f"client '{client}' came after training: its rows are not in the run's data")
    everyone = [rows.client(k) for k in range(rows.federation.clients)]
    sure = fit_sureness(rows, everyone, confidence)
    write_sureness(folder, sure)
    wanted = everyone if asked is None else [everyone[asked]]
    more = shown if asked is not None else 0
    found = [_explain_client(rows, one, sure[one.number], more) for one in wanted]
    before, after = _curves(rows, wanted, sure)
    names = [name for name, _ in rows.groups]
    explained = Explained(rows.measure, names, found, before, after)
    if asked is None:
        each = [(one.importance, one.rows) for one in found if one.rows > 1]
        _write_columns(rows, each, describe_sureness(explained))
    return explained


def explain_columns(folder: Path) -> None:
    """Measure the importance of the columns of a run of one's own table for its report: of clients
    drawn so that there are few enough permutations. Nothing where rows are many or have no columns.
    """
    about = read_about(folder)
    known = read_preparation(folder).columns if (folder / PREPARATION).exists() else ()
    many = sum(sum(about["rows"][part]) for part in PARTS) > QUICK_ROWS
    if many or not known or known[0].kind == TEXT or (folder / EXPLAINED).exists():
        return
    with silence():
        rows = _Explainer(folder, None, None)
    some = [k for k, mine in enumerate(rows.federation.test) if len(mine) > 1]
    most = max(1, QUICK_CALLS // (REPEATS * len(rows.groups)))
    if len(some) > most:
        drawn = stream(rows.experiment.seed, "explain").choice(some, most, replace=False)
        some = np.sort(drawn).tolist()
    clients = [rows.client(k) for k in some]
    clients = [one._replace(test=one.test[:QUICK_TEST]) for one in clients]
    if clients:
        _write_columns(rows, [(rows.importance(one), len(one.test)) for one in clients])


def _write_columns(
    rows: _Explainer, each: Sequence[tuple[dict[str, float], int]], sureness: Sequence[str] = ()
) -> None:
    """The importance of columns over clients and how sure their models are, for reports."""
    columns = []
    for name, _ in rows.groups:
        values = np.array([importance[name] for importance, _ in each])
        values = values[np.isfinite(values)]
        if len(values):
            low, high = np.quantile(values, (0.25, 0.75)).tolist()
            columns.append(ColumnImportance(name, float(values.mean()), low, high))
    columns.sort(key=lambda column: -column.mean)
    tested, everyone = sum(count for _, count in each), rows.federation.clients
    found = ExplainedColumns(
        rows.measure, len(each), everyone, tested, tuple(columns), tuple(sureness)
    )
    write_explained(rows.folder, found)


def fit_sureness(
    rows: _Explainer, everyone: Sequence[_Client], confidence: float
) -> list[Sureness]:
    """A temperature and a conformal quantile of every client, and the coverage on its test rows.

    A client with too few held rows for a quantile or temperature of its own has that of all
    clients' rows: fitted on few rows, a temperature makes probabilities worse.
    """
    least, classes = least_rows(confidence), rows.task.has_classes
    held = [rows.said(one.model, rows.x[one.held]) for one in everyone]
    scores = [rows.strangeness(s, one.held) for s, one in zip(held, everyone, strict=True)]
    common = conformal_quantile(np.concatenate(scores), confidence)
    labels = [rows.y[one.held] for one in everyone]
    shared = fit_temperature(np.concatenate(held), np.concatenate(labels)) if classes else None
    found = []
    for one, said, strange, y in zip(everyone, held, scores, labels, strict=True):
        own = len(strange) >= least
        quantile = conformal_quantile(strange, confidence) if own else common
        test = rows.said(one.model, rows.x[one.test])
        inside = rows.strangeness(test, one.test) <= quantile
        size = prediction_sets(test, quantile).sum(1).mean() if classes and len(test) else np.nan
        found.append(
            Sureness(
                client=one.model.client,
                version=one.model.card["version"],
                confidence=confidence,
                temperature=fit_temperature(said, y)
                if classes and len(y) >= LEAST_HELD
                else shared,
                quantile=quantile,
                rows=len(strange),
                is_own=own,
                covered=int(inside.sum()),
                tested=len(test),
                size=float(size) if classes else None,
            )
        )
    return found


def _explain_client(rows: _Explainer, one: _Client, sure: Sureness, shown: int) -> Explanation:
    importance = rows.importance(one)
    train = rows.x[np.asarray(rows.federation.train[one.number])]
    varied = [name for name, inputs in rows.groups if np.ptp(train[:, inputs], axis=0).any()]
    first = sorted(varied, key=lambda name: -importance[name])[:shown]
    curve, gaps = list[ReliabilityBin](), (float("nan"), float("nan"))
    if rows.task.has_classes and len(one.test):
        curve, after = _curves(rows, [one], {one.number: sure})
        gaps = calibration_gap(curve), calibration_gap(after)
    return Explanation(
        client=one.model.client,
        rows=len(one.test),
        importance=importance,
        dependence=rows.dependence(one, first) if len(one.test) else [],
        reliability=curve,
        gap=gaps[0],
        gap_after=gaps[1],
        sureness=sure,
    )


def _curves(
    rows: _Explainer, clients: Sequence[_Client], sure: Sequence[Sureness] | dict[int, Sureness]
) -> tuple[list[ReliabilityBin], list[ReliabilityBin]]:
    """Reliability on test rows before and after the temperatures; nothing of numbers."""
    if not rows.task.has_classes:
        return [], []
    said = [rows.said(one.model, rows.x[one.test]) for one in clients]
    scaled = [
        scale_probabilities(p, sure[one.number].temperature or 1.0)
        for p, one in zip(said, clients, strict=True)
    ]
    labels = rows.y[np.concatenate([one.test for one in clients])]
    before, after = (reliability_curve(np.concatenate(p), labels) for p in (said, scaled))
    return before, after


def coverage(found: Sequence[Sureness]) -> tuple[float, float, float]:
    """The share of all test rows that sets or intervals cover, with Wilson's 95 % interval."""
    hits, tested = sum(s.covered for s in found), sum(s.tested for s in found)
    return (hits / tested if tested else float("nan"), *share_interval(hits, tested))


def count_test_rows(rows: int) -> str:
    """So many test rows, in words."""
    return f"{rows:,} test row{'s' * (rows != 1)}"


def describe_sureness(found: Explained) -> list[str]:
    """Calibration and coverage in a line each."""
    sure = [one.sureness for one in found.clients]
    share, low, high = coverage(sure)
    tested, own = sum(s.tested for s in sure), sum(s.is_own for s in sure)
    lines, few = [], len(sure) > 1
    if found.curve:
        temperatures = [s.temperature or 1.0 for s in sure]
        lines.append(
            f"Calibration: the gap between confidence and accuracy is "
            f"{100 * calibration_gap(found.curve):.1f} points on {count_test_rows(tested)}, "
            f"{100 * calibration_gap(found.curve_after):.1f} at "
            f"{'the temperatures, median' if few else 'temperature'} {np.median(temperatures):.2f}."
        )
    what = "sets of classes" if found.curve else "intervals"
    reach = (
        f"{mean_of([s.size for s in sure if s.size is not None]):.2f} classes on average"
        if found.curve
        else f"+- {np.median([s.quantile for s in sure]):.3g}{' at the median client' * few}"
    )
    source = (
        f"{own:,} of {len(sure):,} clients have held rows enough for a quantile of their own"
        + (", the others share that of all clients." if own < len(sure) else ".")
        if few
        else f"The quantile is of {'its own held rows' if own else 'the held rows of all clients'}."
    )
    lines.append(
        f"Conformal {what} of {sure[0].confidence:.0%} hold the truth of {share:.1%} of "
        f"{count_test_rows(tested)} (95 % interval {low:.1%} to {high:.1%}), {reach}. {source}"
    )
    return lines
