"""How good the clients' models are: losses, accuracies, scores and predictions on their own
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.analysis.scores import LOSS, scores_of, task_scores
from coterie.core.method import Batch, BatchPlan, Pass
from coterie.core.point import Point, pick
from coterie.engines.base import Measured, Moment, Views
from coterie.engines.local.batches import FULL, Feed
from coterie.engines.local.stacks import channels_last
from coterie.engines.local.steps import Stepper
from coterie.engines.local.work import run_pass

ROWS = 256  # per batch
ModelOf = Callable[[int, str], Any]  # (architecture, view) -> its network


def evaluate(
    views: Views,
    clients: Sequence[int],
    feed: Feed,
    stepper_of: Callable[[int], Stepper],  # of an architecture
    model_of: ModelOf,
    parts: Sequence[str],
    scored: Callable[[int], bool],  # whether an architecture's test rows get all scores
    metric: str = "",  # measured beside loss and accuracy, in every round
) -> Measured:
    """Loss, accuracy (or mean absolute error) and `metric` of every view on every part, NaN for an
    empty part.
    """
    place = {i: k for k, i in enumerate(clients)}
    out: Measured = {}

    def note(key: tuple[str, str, str], chunk: list[int], values: np.ndarray) -> None:
        column = out.setdefault(key, np.full(len(clients), np.nan))
        column[[place[i] for i in chunk]] = values

    for a, chunk, found in views:
        for view, points in found.items():
            for part in parts:
                model, n = model_of(a, view), feed.parts[part].counts[chunk]
                loss, right = measure(feed, stepper_of(a), model, points, chunk, part)
                with np.errstate(invalid="ignore", divide="ignore"):
                    note((view, part, "loss"), chunk, loss / n)
                    note((view, part, model.goal.measure), chunk, right / n)
                if metric not in ("", LOSS.name, model.goal.measure):
                    more = _scores(feed, model, points, chunk, part, (metric,))
                    note((view, part, metric), chunk, more[metric])
        if scored(a):
            model, own = model_of(a, "personal"), found["personal"]
            names = [s.name for s in scores_of(model.task) if s.name != model.goal.measure]
            for name, values in _scores(feed, model, own, chunk, "test", names).items():
                note(("personal", "test", name), chunk, values)
    return out


def _scores(
    feed: Feed, model: Any, points: Point, chunk: list[int], part: str, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Some scores of the clients' models on a part."""
    found = [
        task_scores(model.task, *predicted(feed, model, pick(points, k), i, part), names)
        for k, i in enumerate(chunk)
    ]
    return {name: np.array([f[name] for f in found]) for name in names}


def predicted(
    feed: Feed, model: Any, point: Point, client: int, part: str
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of a client's rows, and the probabilities that a model gives them; of a
    regression the numbers, as the data have them, and those that it predicts.
    """
    mine = feed.parts[part].of_client(client)
    found = []
    for block in mine.split(FULL):
        n = len(block)
        batch = Batch(
            x=feed.x[block],
            y=feed.y[block],
            mask=torch.ones(n),
            place=torch.arange(n),
            key=torch.tensor(0),
        )
        found.append(model.chances(point, batch))
    truth = model.goal.truth(feed.y[mine]).numpy()
    return truth, torch.cat(found).numpy() if found else np.zeros((0, 2))


def measure(
    feed: Feed, stepper: Stepper, model: Any, points: Point, chunk: list[int], part: str
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of losses and the number of rows told rightly, for each client of a chunk."""

    def step(carry: tuple[Point, Tensor, Tensor], batch: Batch) -> tuple[Point, Tensor, Tensor]:
        point, loss, right = carry
        more_loss, more_right = model.measure(point, batch)
        return point, loss + more_loss, right + more_right

    work, when = (
        Pass(step, BatchPlan(part=part, batch=ROWS, shuffle=False)),
        Moment("", 0, "measure"),
    )
    zero = torch.zeros(len(chunk))
    if stepper.vectorized:
        start = (points, zero, zero)
        (_, loss, right), _ = run_pass(feed, stepper, work, part, when, chunk, start)
        return loss.numpy(), right.numpy()
    sums = []
    for k, i in enumerate(chunk):
        start = (channels_last(pick(points, k)), zero[0], zero[0])
        sums.append(run_pass(feed, stepper, work, part, when, [i], start)[0][1:])
    return np.array([float(s[0]) for s in sums]), np.array([float(s[1]) for s in sums])
