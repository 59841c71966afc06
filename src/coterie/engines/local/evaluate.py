"""How good the clients' models are: losses, accuracies, scores and predictions on their own
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.analysis.client_scores import score_clients
from coterie.analysis.scores import LOSS, scores_of
from coterie.core.device import to_numpy
from coterie.core.method import Batch
from coterie.core.point import Point, pick
from coterie.engines.base import Metrics, Views
from coterie.engines.local.autotune import is_dense
from coterie.engines.local.batches import FULL_BATCH, Feed
from coterie.engines.local.native.judging import NativeJudge
from coterie.engines.local.stacks import to_channels_last
from coterie.engines.local.steps import Stepper

ROWS = 256  # of a client per batch
# Convolutions on a processor: rows per batch, so that what lies between layers stays in the cache,
# and the client's mean number of rows from which one after another is faster than stacked
KERNEL_ROWS, MIN_ROWS_ALONE = 128, 32
# Machine code: bytes of a batch's rows, which the nearest cache holds, and rows in a batch
JUDGED_BYTES, LEAST_JUDGED, MOST_JUDGED = 2**15, 8, 128
RowMapper = Callable[[Point, Batch], tuple[Tensor, ...]]  # values of each row of a batch
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
    compiled: Callable[[int], bool] = lambda a: False,  # whether an architecture has machine code
) -> Metrics:
    """Loss, accuracy (or mean absolute error) and `metric` of every view on every part, NaN for an
    empty part.
    """
    place = {i: k for k, i in enumerate(clients)}
    out: Metrics = {}

    def note(key: tuple[str, str, str], values: np.ndarray) -> None:
        if key not in out:
            out[key] = np.full(len(clients), np.nan)
        out[key][at] = values

    for a, chunk, found in views:
        at = np.array([place[i] for i in chunk])
        near, mine = feed.near(chunk)
        last: dict[str, np.ndarray] = {}
        for view, points in found.items():
            for part in parts:
                model = model_of(a, view)
                also = [] if metric in ("", LOSS.name, model.goal.measure) else [metric]
                final = (view, part) == ("personal", "test") and scored(a)
                every = [s.name for s in scores_of(model.task) if s.name != model.goal.measure]
                n = _count_rows(near, model, mine, part)
                loss, right, scores = measure(
                    near,
                    stepper_of(a),
                    model,
                    points,
                    mine,
                    part,
                    compiled(a),
                    also + every * final,
                )
                with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                    note((view, part, "loss"), loss / n)
                    note((view, part, model.goal.measure), model.goal.summarize(right / n))
                for name in also:
                    note((view, part, name), scores[name])
                if final:
                    last = {name: scores[name] for name in every}
        for name, values in last.items():
            note(("personal", "test", name), values)
    return out


def predict_client(
    feed: Feed, model: Any, point: Point, client: int, part: str
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of a client's rows, and the probabilities that a model gives them; of a
    regression the numbers, as the data have them, and those that it predicts.
    """
    feed, (client,) = feed.near([client])
    mine = feed.parts[part].of_client(client)
    found = [model.chances(point, _build_batch(feed, block)) for block in mine.split(FULL_BATCH)]
    truth = to_numpy(model.goal.truth(feed.y[mine]))
    return truth, to_numpy(torch.cat(found)) if found else np.zeros((0, 2))


def measure(
    feed: Feed,
    stepper: Stepper,
    model: Any,
    points: Point,
    chunk: Sequence[int],
    part: str,
    compiled: bool = False,
    names: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The sum of losses and the number of rows predicted rightly, for each client of a chunk, and
    the scores with these names.
    """
    said: np.ndarray | None = None
    compiled = compiled and not model.goal.is_coupled
    rows = CompiledRows.of(feed, stepper, model, points, chunk, part) if compiled else None
    if model.goal.is_coupled:
        loss, right = _measure_together(feed, stepper, model, points, chunk, part)
    else:
        if rows is None:
            _, judged = map_rows(feed, stepper, model.judge, points, chunk, part)
        else:
            judged, outputs = rows.judge(keep=bool(names))
            said = to_numpy(model.goal.predict(outputs)) if names else None
        if model.goal.weigh is not None:
            weights = _weigh_rows(feed, model, chunk, part)
            judged = [values * weights for values in judged]
        counts = feed.parts[part].counts[chunk]
        loss, right = (_sum_each(values, counts) for values in judged)
    if not names:
        return loss, right, {}
    if said is None:
        _, (said,) = map_rows(
            feed, stepper, lambda *one: (model.chances(*one),), points, chunk, part
        )
    held = feed.parts[part]
    truth = to_numpy(model.goal.truth(feed.y[held.of_clients(chunk)]))
    return loss, right, score_clients(model.task, truth, said, held.counts[chunk], names)


def _sum_each(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of the first so many values, of the next so many, and so on."""
    sums, some = np.zeros(len(counts)), counts > 0
    if some.any():
        starts = (np.cumsum(counts) - counts)[some]
        sums[some] = np.add.reduceat(values, starts, dtype=np.float64)
    return sums


class CompiledRows(NamedTuple):
    """The rows of a chunk's clients, and the machine code that evaluates them."""

    code: NativeJudge
    points: Point
    counts: np.ndarray  # rows of each model
    rows: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def of(
        cls,
        feed: Feed,
        stepper: Stepper,
        model: Any,
        points: Point,
        chunk: Sequence[int],
        part: str,
    ) -> CompiledRows | None:
        """None where there is no machine code, or no row."""
        held = feed.parts[part]
        counts = held.counts[chunk]
        shared = _is_shared(points)
        if not counts.sum():
            return None
        largest = JUDGED_BYTES // max(1, feed.x[0].nbytes)
        usual = largest if shared else min(largest, int(counts[counts > 0].mean()))
        size = min(MOST_JUDGED, max(LEAST_JUDGED, 2 ** (max(1, usual).bit_length() - 1)))
        code = stepper.judge_of(model, pick(points, 0), feed, size)
        if code is None:
            return None
        if shared:
            points, counts = pick(points, slice(1)), counts.sum(keepdims=True)
        return cls(code, points, counts, held.of_clients(chunk), feed.x, feed.y)

    def judge(self, keep: bool) -> tuple[list[np.ndarray], Tensor]:
        """What `model.judge` says of every row, client by client, and if they are to be kept what
        the models say of it.
        """
        return self.code.run(*self[1:], keep)


def _is_shared(points: Point) -> bool:
    """Whether it is one model for everybody."""
    return all(leaf.stride(0) == 0 for leaf in pytree.tree_leaves(points))


def _weigh_rows(feed: Feed, model: Any, chunk: Sequence[int], part: str) -> np.ndarray:
    """How much each row of a chunk's clients counts, client by client."""
    return to_numpy(model.goal.weigh(feed.y[feed.parts[part].of_clients(chunk)]))


def _count_rows(feed: Feed, model: Any, chunk: Sequence[int], part: str) -> np.ndarray:
    """What the sums of each client of a chunk are divided by: its rows, or how much they count."""
    counts = feed.parts[part].counts[chunk]
    if model.goal.weigh is None:
        return counts
    owner = np.repeat(np.arange(len(chunk)), counts)
    weights = _weigh_rows(feed, model, chunk, part)
    return np.bincount(owner, weights=weights, minlength=len(chunk))


def _measure_together(
    feed: Feed, stepper: Stepper, model: Any, points: Point, chunk: Sequence[int], part: str
) -> tuple[np.ndarray, np.ndarray]:
    """The same where rows are compared with each other: all those of a client, and no others."""
    held, goal = feed.parts[part], model.goal
    _, (said,) = map_rows(feed, stepper, lambda *one: (model.logits(*one),), points, chunk, part)
    counts = held.counts[chunk].tolist()
    sums = [
        (goal.losses(out, y).sum(), goal.counted(out, y).sum())
        for out, y in zip(
            torch.as_tensor(said).split(counts),
            feed.y[held.of_clients(chunk)].cpu().split(counts),
            strict=True,
        )
    ]
    loss, right = (np.array([float(v) for v in values]) for values in zip(*sums, strict=True))
    return loss, right


def map_rows(
    feed: Feed, stepper: Stepper, f: RowMapper, points: Point, chunk: Sequence[int], part: str
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What a function says of every row of a chunk's clients, client by client: whose rows these
    are [n], as places in the chunk, and its values [n, ...].
    """
    held = feed.parts[part]
    counts = held.counts[chunk]
    if not counts.sum():
        outputs = f(pick(points, 0), _build_batch(feed, torch.zeros(1, dtype=torch.int64)))
        return np.zeros(0, dtype=np.int64), [to_numpy(v[:0]) for v in outputs]
    if _is_shared(points):
        found = _map_blocks(feed, f, pick(points, 0), held.of_clients(chunk))
    elif stepper.vectorized and not (
        counts[counts > 0].mean() >= MIN_ROWS_ALONE and _has_kernels(feed, pick(points, 0))
    ):
        return _map_stacked(feed, f, points, chunk, part)
    else:
        each = [
            _map_blocks(feed, f, pick(points, k), held.of_client(i))
            for k, i in enumerate(chunk)
            if counts[k]
        ]
        found = [torch.cat(values) for values in zip(*each, strict=True)]
    return np.repeat(np.arange(len(chunk)), counts), [to_numpy(values) for values in found]


def _build_batch(feed: Feed, rows: Tensor) -> Batch:
    """Real rows [..., B] as a batch."""
    x = feed.x.index_select(0, rows.reshape(-1))  # much faster than feed.x[rows]
    return Batch(
        x=x.reshape(*rows.shape, *x.shape[1:]),
        y=feed.y[rows],
        mask=torch.ones(rows.shape),
        place=torch.zeros_like(rows),
        key=torch.zeros(rows.shape[:-1], dtype=torch.int64),
    )


def _map_blocks(feed: Feed, f: RowMapper, point: Point, rows: Tensor) -> list[Tensor]:
    """The values of many rows under one model."""
    size = KERNEL_ROWS if _has_kernels(feed, point) else FULL_BATCH
    dense, found = _is_dense(point), []
    point = point if dense else to_channels_last(point)
    for block in rows.split(size):
        batch = _build_batch(feed, block)  # dense layers would put images back in order
        found.append(f(point, batch if dense else to_channels_last(batch)))
    return [torch.cat(values) for values in zip(*found, strict=True)]


def _has_kernels(feed: Feed, point: Point) -> bool:
    """Whether a model has convolutions, and a processor computes them."""
    return feed.x.is_cpu and not _is_dense(point)


def _is_dense(point: Point) -> bool:
    """Whether a model has no convolutions."""
    return is_dense(leaf.shape for leaf in pytree.tree_leaves(point))


def _map_stacked(
    feed: Feed, f: RowMapper, points: Point, chunk: Sequence[int], part: str
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The values of rows under the models of their clients, many clients at once.

    Clients with most rows come first, so that those whose rows are over are left out.
    """
    held = feed.parts[part]
    order = np.argsort(-held.counts[chunk], kind="stable")
    counts, first = held.counts[chunk][order], torch.as_tensor(held.first[chunk][order])
    sizes, points = torch.as_tensor(counts), pick(points, torch.as_tensor(order))
    # Few rows at once where most clients have few: little is padding.
    step = int(min(ROWS, max(1, 2 * counts[counts > 0].mean()), counts[0]))
    lifted = torch.func.vmap(f)
    owners, places, found = [], [], []
    for begin in range(0, int(counts[0]), step):
        width = int((counts > begin).sum())
        place = torch.arange(begin, begin + step).expand(width, step)
        real = place < sizes[:width, None]
        batch = _build_batch(
            feed, held.rows[first[:width, None] + place.minimum(sizes[:width, None] - 1)]
        )
        batch = batch._replace(mask=real.to(batch.mask.dtype))
        said = lifted(pick(points, slice(width)), batch)
        found.append([v[real.to(v.device)] for v in said])
        owners.append(order[to_numpy(real.nonzero()[:, 0])])
        places.append(to_numpy(place[real]))
    owner = np.concatenate(owners)
    sorting = np.lexsort((np.concatenate(places), owner))
    values = [to_numpy(torch.cat(v))[sorting] for v in zip(*found, strict=True)]
    return owner[sorting], values
