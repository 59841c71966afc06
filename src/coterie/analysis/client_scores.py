"""The scores of many clients at once: number for number those of one client after another.

Sums of floating-point numbers depend on their order. So what is averaged is put in blocks of
clients with equally many numbers, and numpy adds up a row of a block as it adds up one client's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.scores import BINS, score_task, scores_of
from coterie.core.functions import is_function_name
from coterie.core.task import find_task


class ClientPredictions(NamedTuple):
    """What models say of the rows of many clients, one client after another."""

    labels: np.ndarray  # [n]
    chances: np.ndarray  # [n, K]
    counts: np.ndarray  # [clients] rows of each
    owner: np.ndarray  # [n] whose row it is
    classes: np.ndarray  # [n] the likeliest class


class ClassScores(NamedTuple):
    """Clients and the classes that are told from all others, by client."""

    client: np.ndarray  # [m]
    auc: np.ndarray  # [m]
    precision: np.ndarray  # [m] average precision


def score_clients(
    task: str, truth: np.ndarray, said: np.ndarray, counts: np.ndarray, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """{score: [clients]} of rows that lie one client after another; NaN where there are none."""
    wanted = [score.name for score in scores_of(task) if score.name in names]
    wanted += [name for name in names if is_function_name(name)]
    if not find_task(task).has_classes:
        return _score_one_by_one(task, truth, said, counts, wanted)
    if not len(truth):
        return {name: np.full(len(counts), np.nan) for name in wanted}
    owner = np.repeat(np.arange(len(counts)), counts)
    crowd = ClientPredictions(truth.astype(int), said, counts, owner, said.argmax(axis=1))
    columns: dict[str, np.ndarray] = {}
    for names_of, make in MAKERS:
        if set(names_of) & set(wanted):
            columns |= make(crowd)
    others = [name for name in wanted if name not in columns]
    columns |= _score_one_by_one(task, truth, said, counts, others) if others else {}
    return {name: columns[name] for name in wanted}


def _score_one_by_one(
    task: str, truth: np.ndarray, said: np.ndarray, counts: np.ndarray, names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The same by the scores' own functions, one client after another."""
    ends = np.cumsum(counts)[:-1]
    pairs = zip(np.split(truth, ends), np.split(said, ends), strict=True)
    found = [score_task(task, y, p, names) for y, p in pairs]
    return {name: np.array([f[name] for f in found]) for name in names}


def map_clients(
    values: np.ndarray, counts: np.ndarray, of: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """[clients] a function of each client's values, which lie one client after another."""
    ends, out = np.cumsum(counts), np.full(len(counts), np.nan)
    for n in np.unique(counts[counts > 0]):
        who = np.flatnonzero(counts == n)
        out[who] = of(values[(ends[who] - n)[:, None] + np.arange(n)])
    return out


def _row_means(block: np.ndarray) -> np.ndarray:
    return np.asarray(block.mean(axis=1))


def _row_scores_of(crowd: ClientPredictions) -> dict[str, np.ndarray]:
    """What is a mean over rows."""
    chance = crowd.chances[np.arange(len(crowd.labels)), crowd.labels]
    losses = np.log(np.clip(chance, np.finfo(float).eps, 1))
    return {
        "accuracy": map_clients(crowd.classes == crowd.labels, crowd.counts, _row_means),
        "mae": map_clients(np.abs(crowd.classes - crowd.labels), crowd.counts, _row_means),
        "log_loss": -map_clients(losses, crowd.counts, _row_means),
    }


def _macro_scores_of(crowd: ClientPredictions) -> dict[str, np.ndarray]:
    """Precision, recall and F1, averaged over the classes that a client holds."""
    kinds = crowd.chances.shape[1]
    right = crowd.classes == crowd.labels
    shape = (len(crowd.counts), kinds)
    rows, guessed, hits = (
        np.bincount(owner * kinds + classes, minlength=shape[0] * kinds).reshape(shape)
        for owner, classes in (
            (crowd.owner, crowd.labels),
            (crowd.owner, crowd.classes),
            (crowd.owner[right], crowd.labels[right]),
        )
    )
    held = rows > 0
    number = held.sum(1)
    rows, guessed, hits = rows[held], guessed[held], hits[held]
    recall = map_clients(hits / rows, number, _row_means)
    return {
        "precision": map_clients(hits / np.maximum(guessed, 1), number, _row_means),
        "recall": recall,
        "balanced_accuracy": recall,
        "f1": map_clients(2 * hits / (rows + guessed), number, _row_means),
    }


def _calibration_of(crowd: ClientPredictions) -> dict[str, np.ndarray]:
    """The gap between confidence and accuracy in bins of equal width, weighted by rows."""
    n = len(crowd.counts)
    confidence = crowd.chances[np.arange(len(crowd.labels)), crowd.classes]
    sure = np.clip(np.asarray(confidence, dtype=float), 0, 1)
    hits = (crowd.classes == crowd.labels).astype(int)
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure)
    place = np.minimum(place, BINS - 1)  # NaN: such a client has no such error
    gap = np.bincount(crowd.owner * BINS + place, weights=hits - sure, minlength=n * BINS)
    with np.errstate(invalid="ignore"):
        error = np.abs(gap.reshape(n, BINS)).sum(1) / crowd.counts
    return {"calibration_error": error}


def _rank_scores_of(crowd: ClientPredictions) -> dict[str, np.ndarray]:
    """AUC and average precision, averaged over the classes that a client holds."""
    kinds, n = crowd.chances.shape[1], len(crowd.counts)
    if kinds == 2:
        scored = [_score_class(crowd, 1, np.flatnonzero(crowd.counts))]
    else:
        scored = [
            _score_class(crowd, k, np.unique(crowd.owner[crowd.labels == k]))
            for k in np.unique(crowd.labels)
        ]
    client = np.concatenate([pairs.client for pairs in scored])
    order = np.argsort(client, kind="stable")  # of one client by class
    out = {}
    for name, column in (("auc", "auc"), ("average_precision", "precision")):
        values = np.concatenate([getattr(pairs, column) for pairs in scored])[order]
        there = ~np.isnan(values)
        counts = np.bincount(client[order][there], minlength=n)
        out[name] = map_clients(values[there], counts, _row_means)
    return out


def _score_class(crowd: ClientPredictions, kind: int, clients: np.ndarray) -> ClassScores:
    """How well the rows of one class are told from the others of each of the clients."""
    mine = np.isin(np.arange(len(crowd.counts)), clients)[crowd.owner]
    counts = crowd.counts[clients]
    pair = np.repeat(np.arange(len(clients)), counts)
    score, yes = crowd.chances[mine, kind], crowd.labels[mine] == kind
    order = np.lexsort((-score, pair))  # the highest first
    score, yes = score[order], yes[order]
    first = (np.cumsum(counts) - counts)[pair]  # of the client
    place = np.arange(len(pair)) - first
    hits = np.cumsum(yes)
    hits = hits - (hits[first] - yes[first])  # of the client so far
    last = np.flatnonzero(np.append((np.diff(score) != 0) | (np.diff(pair) != 0), True))
    positive = np.bincount(pair, weights=yes, minlength=len(clients)).astype(int)
    auc = _auc(pair, place, yes, last, counts, positive)
    begins = np.append(True, np.diff(pair[last]) != 0)  # the first tie of each client
    before = np.where(begins, 0, np.append(0, hits[last[:-1]]))
    terms = (hits[last] - before) * (hits[last] / (place[last] + 1))
    ties = np.bincount(pair[last], minlength=len(clients))
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = map_clients(terms, ties, lambda block: np.asarray(block.sum(axis=1))) / positive
    unknown = np.bincount(pair, weights=np.isnan(score), minlength=len(clients)) > 0
    auc[unknown | (positive == 0) | (positive == counts)] = np.nan
    precision[unknown | (positive == 0)] = np.nan
    return ClassScores(clients, auc, precision)


def _auc(
    pair: np.ndarray,
    place: np.ndarray,
    yes: np.ndarray,
    last: np.ndarray,
    counts: np.ndarray,
    positive: np.ndarray,
) -> np.ndarray:
    """The chance that a positive row scores above a negative one, by mean ranks; all halves."""
    size = np.diff(last, prepend=-1)
    middle = np.repeat(place[last] - (size - 1) / 2, size)  # from 0, the highest first
    rank = counts[pair] - middle
    ranks = np.bincount(pair[yes], weights=rank[yes], minlength=len(counts))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = (ranks - positive * (positive + 1) / 2) / (
            positive * (counts - positive)
        )
    return found


MAKERS: tuple[tuple[tuple[str, ...], Callable[[ClientPredictions], dict[str, np.ndarray]]], ...] = (
    (("accuracy", "mae", "log_loss"), _row_scores_of),
    (("precision", "recall", "balanced_accuracy", "f1"), _macro_scores_of),
    (("calibration_error",), _calibration_of),
    (("auc", "average_precision"), _rank_scores_of),
)
