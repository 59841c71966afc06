"""What a model says of rows, as a table: the prediction, then the probability of every class."""

from __future__ import annotations

import polars as pl
from torch import Tensor

from coterie.results.personal import Task

PREDICTION = "prediction"


def answer_columns(task: Task) -> list[str]:
    """The columns of an answer."""
    return [PREDICTION, *(f"probability of {name}" for name in task.names)]


def answer_frame(task: Task, outputs: Tensor) -> pl.DataFrame:
    """One row per row, from the outputs of a network."""
    found = {PREDICTION: task.answers(outputs)}
    if task.names:
        shares = task.probabilities(outputs)
        names = answer_columns(task)[1:]
        found |= {name: shares[:, k] for k, name in enumerate(names)}
    return pl.DataFrame(found)
