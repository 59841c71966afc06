"""What scikit-learn reaches on the same rows without federated learning: alone and pooled.

Alone, every client has the best of a few regularized linear models and gradient boosting on its
own training rows, chosen on its validation rows; pooled, all training rows are put together, which
federated learning exists to avoid. Inputs are those of the networks, test rows choose nothing.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.scores import find_score, score_task
from coterie.core.files import write_text
from coterie.core.rng import stream
from coterie.core.task import find_task
from coterie.data.federation import Federation
from coterie.data.target import task_of
from coterie.results.comparison import REFERENCES

LEAST = 40  # rows below which gradient boosting makes no split
MOST_CLIENTS = 200  # clients that have a model of their own; of more, a sample is drawn
MOST_ROWS = 100_000  # rows of the pooled models; of more, a sample is drawn
LINEAR, BOOSTED = "a linear model", "gradient boosting"


class Reference(NamedTuple):
    """Test scores of clients, and which model they have."""

    values: list[float]  # [N]; NaN: not measured
    models: dict[str, int]  # {kind: clients}


def find_makers(task: str) -> list[tuple[str, Callable[[], Any]]]:
    """The models that are tried, (kind, maker); [] where scikit-learn has none for a task."""
    from sklearn import ensemble, linear_model  # a second to load

    known = find_task(task)
    if known.reference == "classifier":
        return [
            *(
                (LINEAR, lambda c=c: linear_model.LogisticRegression(C=c, max_iter=300))
                for c in (0.01, 0.1, 1.0)
            ),
            (BOOSTED, lambda: ensemble.HistGradientBoostingClassifier(random_state=0)),
        ]
    if known.reference == "poisson":
        return [
            *((LINEAR, lambda a=a: linear_model.PoissonRegressor(alpha=a)) for a in (0.01, 1.0)),
            (
                BOOSTED,
                lambda: ensemble.HistGradientBoostingRegressor(loss="poisson", random_state=0),
            ),
        ]
    if known.reference == "regressor":
        return [
            *((LINEAR, lambda a=a: linear_model.Ridge(alpha=a)) for a in (1.0, 10.0, 100.0)),
            (BOOSTED, lambda: ensemble.HistGradientBoostingRegressor(random_state=0)),
        ]
    return []


class _Rows(NamedTuple):
    """What models are fitted on and judged by."""

    x: np.ndarray
    y: np.ndarray  # class numbers, or numbers in the label's own unit
    classes: int
    task: str
    measure: str

    def judge(self, said: np.ndarray, rows: np.ndarray) -> float:
        return score_task(self.task, self.y[rows], said, [self.measure])[self.measure]

    def fit(self, make: Callable[[], Any], train: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """A model's predictions by rows: probabilities [n, K], or numbers [n]."""
        held = np.unique(self.y[train])
        if self.classes and len(held) < 2:
            only = np.eye(self.classes)[held[0]]
            return lambda rows: np.tile(only, (len(rows), 1))
        model = make().fit(self.x[train], self.y[train])
        if not self.classes:
            return lambda rows: np.asarray(model.predict(self.x[rows]), dtype=float)

        def predict(rows: np.ndarray) -> np.ndarray:
            said = np.zeros((len(rows), self.classes))
            said[:, model.classes_] = model.predict_proba(self.x[rows])
            return said

        return predict

    def choose(
        self, makers: Sequence[tuple[str, Callable[[], Any]]], train: np.ndarray, held: np.ndarray
    ) -> tuple[str, Callable[[np.ndarray], np.ndarray]]:
        """The model that is best on validation rows; the first where there are none."""
        usable = [m for m in makers if m[0] != BOOSTED or len(train) >= LEAST]
        fitted = [(kind, self.fit(make, train)) for kind, make in usable]
        if not len(held):
            return fitted[0]
        sign = find_score(self.measure).sign
        scores = [sign * self.judge(predict(held), held) for _, predict in fitted]
        best = int(np.nanargmax(scores)) if not np.isnan(scores).all() else 0
        return fitted[best]


def fit_references(federation: Federation, measure: str, seed: int) -> dict[str, Reference]:
    """{"alone": ..., "pooled": ...}; {} where scikit-learn has no model for the task, or the
    measure is none of its scores.
    """
    task = federation.target.task
    makers = find_makers(task)
    known = score_task(task, np.zeros(0), np.zeros(0))
    if not makers or measure not in known:
        return {}
    rows = _Rows(
        x=federation.x.numpy().reshape(len(federation.x), -1),
        y=task_of(federation.target).truth(federation.y).numpy(),
        classes=federation.classes,
        task=task,
        measure=measure,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence, and of classes with few rows
        return {
            "alone": _fit_alone(rows, makers, federation, seed),
            "pooled": _fit_pooled(rows, makers, federation, seed),
        }


def _fit_alone(rows: _Rows, makers: Any, federation: Federation, seed: int) -> Reference:
    n, kinds = federation.clients, Counter[str]()
    values = np.full(n, np.nan)
    some = np.arange(n)
    if n > MOST_CLIENTS:
        some = np.sort(stream(seed, "references").choice(n, MOST_CLIENTS, replace=False))
    for i in some.tolist():
        kind, predict = rows.choose(makers, federation.train[i], federation.validation[i])
        kinds[kind] += 1
        if len(federation.test[i]):
            values[i] = rows.judge(predict(federation.test[i]), federation.test[i])
    return Reference(values.tolist(), dict(kinds))


def _fit_pooled(rows: _Rows, makers: Any, federation: Federation, seed: int) -> Reference:
    draw = stream(seed, "pooled")

    def pool(part: Sequence[np.ndarray]) -> np.ndarray:
        every = np.unique(np.concatenate([np.asarray(p) for p in part]))
        few = len(every) <= MOST_ROWS
        return every if few else np.sort(draw.choice(every, MOST_ROWS, replace=False))

    kind, predict = rows.choose(makers, pool(federation.train), pool(federation.validation))
    tests = [np.asarray(rows_of) for rows_of in federation.test]
    values = [rows.judge(predict(t), t) if len(t) else np.nan for t in tests]
    return Reference(values, {kind: federation.clients})


def write_references(folder: Path, found: dict[int, dict[str, Reference]], measure: str) -> None:
    """What was found for each seed, beside the runs."""
    seeds = {
        str(seed): {name: one._asdict() for name, one in each.items()}
        for seed, each in found.items()
    }
    write_text(folder / REFERENCES, json.dumps({"measure": measure, "seeds": seeds}, indent=1))
