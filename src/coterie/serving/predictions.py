"""What a model says of rows, as a table: the prediction, then the probability of every class."""

from __future__ import annotations

import numpy as np
import polars as pl
from torch import Tensor

from coterie.analysis.calibration import prediction_sets, scale_probabilities
from coterie.results.personal_models import ModelTask

PREDICTION = "prediction"


def build_prediction_frame(task: ModelTask, outputs: Tensor) -> pl.DataFrame:
    """One row per row, from the outputs of a network."""
    shares = task.probabilities(outputs) if task.names else None
    return prediction_frame_of(task, task.answers(outputs), shares)


def prediction_frame_of(
    task: ModelTask, answers: np.ndarray, shares: np.ndarray | None
) -> pl.DataFrame:
    """Predictions and probabilities side by side; several labels have a prediction each."""
    found = {PREDICTION: answers}
    if task.several or answers.ndim > 1:
        names = task.names or tuple(str(k) for k in range(answers.shape[1]))
        found = {f"{PREDICTION} of {name}": answers[:, k] for k, name in enumerate(names)}
    if shares is not None:
        found |= {f"probability of {name}": shares[:, k] for k, name in enumerate(task.names)}
    return pl.DataFrame(found)


def add_sureness(
    task: ModelTask,
    frame: pl.DataFrame,
    shares: np.ndarray | None,
    temperatures: np.ndarray,
    reach: np.ndarray,
) -> pl.DataFrame:
    """The same with calibrated probabilities and the set of every row, or its interval.

    shares: [n, classes] probabilities; None: of numbers. temperatures, reach: [n] temperature and
    conformal quantile of the model of every row.
    """
    if shares is None:
        middle = frame[PREDICTION].to_numpy()
        return frame.with_columns(low=pl.Series(middle - reach), high=pl.Series(middle + reach))
    shares = shares.astype(float)
    inside = prediction_sets(shares, reach[:, None])
    scaled = scale_probabilities(shares, temperatures[:, None])
    sets = [", ".join(n for n, i in zip(task.names, row, strict=True) if i) for row in inside]
    return frame.with_columns(
        *(pl.Series(f"probability of {name}", scaled[:, k]) for k, name in enumerate(task.names)),
        pl.Series("set", sets, pl.String),
    )
