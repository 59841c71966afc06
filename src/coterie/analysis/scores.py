"""What one client's own model is worth beyond accuracy.

Macro averages run over the classes that the client HOLDS in the part: it cannot be blamed for a
class it never sees, and a row taken for such a class costs recall. So recall and balanced accuracy
are one number, kept under both names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.core.errors import BadInput

BINS = 15


@dataclass(frozen=True)
class Guesses:
    """What a model says of a client's rows."""

    labels: np.ndarray  # [n]
    probabilities: np.ndarray  # [n, K]

    @cached_property
    def classes(self) -> np.ndarray:
        """[n] the likeliest class of each row."""
        return np.asarray(self.probabilities.argmax(axis=1))

    @cached_property
    def right(self) -> np.ndarray:
        return np.asarray(self.classes == self.labels)

    @cached_property
    def confidence(self) -> np.ndarray:
        """[n] the probability of the likeliest class."""
        return np.asarray(self.probabilities[np.arange(len(self.labels)), self.classes])

    @cached_property
    def macro(self) -> tuple[float, float, float]:
        """Precision, recall and F1, averaged over the classes that the client holds."""
        # counted here: scikit-learn takes milliseconds per client, and there may be 100,000
        held = np.unique(self.labels)
        most = int(max(held.max(), self.classes.max())) + 1
        rows, guessed, hits = (
            np.bincount(classes, minlength=most)[held]
            for classes in (self.labels, self.classes, self.labels[self.right])
        )
        precision = hits / np.maximum(guessed, 1)
        return precision.mean(), (hits / rows).mean(), (2 * hits / (rows + guessed)).mean()


def calibration_error(right: ArrayLike, confidence: ArrayLike) -> float:
    """Expected calibration error: the gap between confidence and accuracy in 15 bins of equal
    width, weighted by rows.

    It is NaN where a confidence is NaN, as with a model that diverged.
    """
    hits, sure = (
        np.asarray(right).astype(int),
        np.clip(np.asarray(confidence, dtype=float), 0, 1),
    )  # softmax rounds above 1
    if not len(sure) or np.isnan(sure).any():
        return float("nan")
    # an edge belongs to the bin below
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure)
    gap = np.bincount(place, weights=hits - sure, minlength=BINS)
    return float(np.abs(gap).sum() / len(sure))


class Score(NamedTuple):
    """A measure of a client's own model at the end of a run: all that terminal, report and files
    know of it.
    """

    name: str  # in the table of a run and in CSV files
    label: str
    of: Callable[[Guesses], float]  # a share from 0 to 1
    higher: bool = True  # is better
    meaning: str = ""


HELD = "averaged over the classes that a client holds"
SCORES = (
    Score("accuracy", "accuracy", lambda g: g.right.mean()),
    Score("f1", "F1", lambda g: g.macro[2], meaning=HELD),
    Score("precision", "precision", lambda g: g.macro[0], meaning=HELD),
    Score("recall", "recall", lambda g: g.macro[1], meaning=HELD),
    Score(
        "balanced_accuracy",
        "balanced accuracy",
        lambda g: g.macro[1],
        meaning="the same number as recall",
    ),
    Score(
        "calibration_error",
        "calibration error",
        lambda g: calibration_error(g.right, g.confidence),
        higher=False,
        meaning="the mean gap between confidence and accuracy",
    ),
)
NAMES = tuple(score.name for score in SCORES)
MORE = SCORES[1:]  # accuracy is measured in every round, on every part


def scores(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Every score from labels [n] and probabilities [n, K], or [n] of class 1; NaN where there are
    no rows.
    """
    y, p = np.asarray(labels).astype(int), np.asarray(probabilities, dtype=float)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    if len(p) != len(y):
        raise BadInput(f"{len(y)} labels, but probabilities of {len(p)} rows: give one row each")
    if not len(y):
        return dict.fromkeys(NAMES, float("nan"))
    guesses = Guesses(y, p)
    return {score.name: float(score.of(guesses)) for score in SCORES}
