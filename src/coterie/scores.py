"""What one client's own model is worth beyond accuracy, and a detector's false accepts beside those of a baseline.

Macro averages run over the classes that the client HOLDS in the part: it cannot be blamed for a class it never sees, and a row
taken for such a class costs recall. So recall and balanced accuracy are one number, kept under both names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_recall_fscore_support

from .errors import BadInput
from .evaluation import FalseAccepts, false_accepts

if TYPE_CHECKING:
    from .folder import Run

NAMES = ("accuracy", "f1", "precision", "recall", "balanced_accuracy", "calibration_error")
BINS = 15
FILE = "scores.parquet"  # client, label, score: a row for each test row of a task of two classes


def scores(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Every measure of NAMES from labels [n] and probabilities [n, K], or [n] of class 1; NaN where there are no rows."""
    y, p = np.asarray(labels).astype(int), np.asarray(probabilities, dtype=float)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    if len(p) != len(y):
        raise BadInput(f"{len(y)} labels, but probabilities of {len(p)} rows: give one row each")
    if not len(y):
        return dict.fromkeys(NAMES, float("nan"))
    guess = p.argmax(axis=1)
    precision, recall, f1, _ = precision_recall_fscore_support(y, guess, labels=np.unique(y), average="macro", zero_division=0)
    right = guess == y
    found = (right.mean(), f1, precision, recall, recall, calibration_error(right, p[np.arange(len(p)), guess]))
    return dict(zip(NAMES, map(float, found), strict=True))


def calibration_error(right: ArrayLike, confidence: ArrayLike) -> float:
    """Expected calibration error: the gap between confidence and accuracy in 15 bins of equal width, weighted by rows.

    NaN for confidences that are no numbers, as of a model that diverged.
    """
    hits, sure = np.asarray(right).astype(int), np.clip(np.asarray(confidence, dtype=float), 0, 1)  # softmax rounds above 1
    if not len(sure) or np.isnan(sure).any():
        return float("nan")
    accuracy, stated = calibration_curve(hits, sure, n_bins=BINS)
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure)  # its bins: an edge belongs to the bin below
    counts = np.bincount(place, minlength=BINS)
    return float(np.average(np.abs(accuracy - stated), weights=counts[counts > 0]))


def relative_false_accepts(run: Run, baseline: Run, threshold: float = 0.5) -> FalseAccepts:
    """False accepts of every client's own model over those of a baseline's, the rows of all clients together."""
    mine, theirs = _pair(run, baseline)
    return false_accepts(mine["label"], mine["score"], theirs["score"], threshold)


def false_accepts_by_group(run: Run, baseline: Run, threshold: float = 0.5) -> dict[int, FalseAccepts]:
    """The same for each true group (Self-FL: device type), every group at its own threshold; NaN for rows of one class alone."""
    mine, theirs = _pair(run, baseline)
    group = np.asarray(run.facts["groups"])[mine["client"]]
    found = {}
    for g in np.unique(group):
        label, score, base = (column[group == g] for column in (mine["label"], mine["score"], theirs["score"]))
        both = len(np.unique(label)) == 2
        found[int(g)] = false_accepts(label, score, base, threshold) if both else FalseAccepts(*[float("nan")] * 3)
    return found


def _pair(run: Run, baseline: Run) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The scores of two runs, of the same rows."""
    mine, theirs = read_scores(run.folder), read_scores(baseline.folder)
    if not all(np.array_equal(mine[name], theirs[name]) for name in ("client", "label")):
        raise BadInput(
            f"{run.folder} and {baseline.folder} scored different test rows: compare runs on the same data, split and seed"
        )
    return mine, theirs


def read_scores(folder: Path) -> dict[str, np.ndarray]:
    """client, label and score of every test row of a run, client by client."""
    path = folder / FILE
    try:
        table = pq.read_table(path, columns=["client", "label", "score"])
    except FileNotFoundError:
        raise BadInput(f"{folder} has no {FILE}: scores are written at the end of a run on data of two classes") from None
    except (pa.ArrowException, OSError) as problem:
        raise BadInput(f"{path} cannot be read: {str(problem).splitlines()[0]}") from None
    order = np.argsort(table["client"].to_numpy(), kind="stable")
    return {name: table[name].to_numpy()[order] for name in table.column_names}
