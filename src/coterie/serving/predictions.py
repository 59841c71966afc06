"""What a model says of rows, as a table: the prediction, then the probability of every class."""

from __future__ import annotations

import numpy as np
import polars as pl
from torch import Tensor

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
