"""What one client's own model is worth: every measure that a run may be judged by.

Macro averages run over the classes that the client HOLDS in the part: it cannot be blamed for a
class it never sees, and a row taken for such a class costs recall. So recall and balanced accuracy
are one number, kept under both names. AUC and average precision tell each of these classes from all
others; of two classes they are those of the second. Of several labels, all are averaged over the
labels. A measure that a client's rows cannot have is NaN, as R2 of a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from coterie.analysis.lazy_scipy import scipy_stats
from coterie.analysis.nan_math import mean_of
from coterie.core.errors import BadInput, format_value
from coterie.core.functions import find_function, is_function_name
from coterie.core.option_names import find_alike
from coterie.core.task import (
    CLASS,
    LABELS,
    NUMBER,
    TASKS,
    TIME,
    TOKENS,
    count_pairs,
    find_task,
)

BINS = 15


@dataclass(frozen=True)
class ClassPredictions:
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


@dataclass(frozen=True)
class LabelPredictions:
    """What a model says of rows with several labels, each there or not."""

    labels: np.ndarray  # [n, L] of 0 and 1
    probabilities: np.ndarray  # [n, L]

    @cached_property
    def right(self) -> np.ndarray:
        return np.asarray((self.probabilities > 0.5) == (self.labels > 0.5))

    def over(self, measure: Callable[[np.ndarray, np.ndarray], float]) -> float:
        """The mean of a measure over the labels that can have it."""
        pairs = zip(self.labels.T, self.probabilities.T, strict=True)
        return mean_of([measure(y, p) for y, p in pairs])


@dataclass(frozen=True)
class NumberPredictions:
    """What a model says of rows whose target is a number."""

    truth: np.ndarray  # [n]
    said: np.ndarray  # [n]

    @cached_property
    def errors(self) -> np.ndarray:
        return np.asarray(self.said - self.truth)


def auc(positive: np.ndarray, score: np.ndarray) -> float:
    """The chance that a positive row scores above a negative one, ties half; NaN without both."""
    yes = np.asarray(positive, bool)
    n, m = int(yes.sum()), int((~yes).sum())
    if not n or not m or np.isnan(score).any():
        return nan
    return float((scipy_stats().rankdata(score)[yes].sum() - n * (n + 1) / 2) / (n * m))


def average_precision(positive: np.ndarray, score: np.ndarray) -> float:
    """The mean over positive rows of the precision at their score; NaN without one."""
    yes = np.asarray(positive, bool)
    if not yes.any() or np.isnan(score).any():
        return nan
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(yes[order])
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))  # of each tie
    precision = hits[last] / (last + 1)
    return float((np.diff(hits[last], prepend=0) * precision).sum() / yes.sum())


def _macro_mean(g: ClassPredictions, measure: Callable[[np.ndarray, np.ndarray], float]) -> float:
    if g.probabilities.shape[1] == 2:
        return measure(g.labels == 1, g.probabilities[:, 1])
    held = np.unique(g.labels)
    return mean_of([measure(g.labels == k, g.probabilities[:, k]) for k in held])


def log_loss(chance: np.ndarray) -> float:
    """Mean of -log of the probability given to what was true."""
    return float(-np.log(np.clip(chance, np.finfo(float).eps, 1)).mean())


def concordance(times: np.ndarray, risk: np.ndarray) -> float:
    """Harrell's concordance index of times, below 0 where the event was not seen, and risks; NaN
    where no two rows can be compared.
    """
    pairs, right = count_pairs(torch.as_tensor(risk), torch.as_tensor(times))
    return float(right.sum() / pairs.sum()) if pairs.sum() and not np.isnan(risk).any() else nan


def _r2(g: NumberPredictions) -> float:
    total = np.square(g.truth - g.truth.mean()).sum()
    return float(1 - np.square(g.errors).sum() / total) if total > 0 else nan


def _label_f1(y: np.ndarray, p: np.ndarray) -> float:
    said, yes = p > 0.5, y > 0.5
    both = int(said.sum() + yes.sum())
    return float(2 * (said & yes).sum() / both) if both else nan


class Score(NamedTuple):
    """A measure of a client's own model: all that terminal, report and files know of it."""

    name: str  # in the table of a run and in CSV files
    label: str
    of: Callable[[Any], float]
    higher: bool = True  # is better
    meaning: str = ""
    share: bool = True  # from 0 to 1, shown in %
    ends: tuple[float, float] | None = None  # what no value lies beyond; None: the usual

    @property
    def sign(self) -> int:
        """What makes more of it better."""
        return 1 if self.higher else -1

    @property
    def unit(self) -> str:
        """What a heading says beside the label."""
        return " in %" if self.share else ""

    @property
    def bounds(self) -> tuple[float, float]:
        """What no value lies beyond."""
        if self.ends is not None:
            return self.ends
        return (0.0, 1.0) if self.share else (-inf, 1.0) if self.higher else (0.0, inf)

    def text(self, value: float) -> str:
        """A value as people read it."""
        return f"{100 * value:.2f}" if self.share else f"{value:.4g}"


HELD_CLASSES = "averaged over the classes that a client holds"
LOSS = Score("loss", "loss", lambda g: nan, higher=False, share=False)  # the network's own
SCORES = (
    Score("accuracy", "accuracy", lambda g: g.right.mean()),
    Score("f1", "F1", lambda g: g.macro[2], meaning=HELD_CLASSES),
    Score("precision", "precision", lambda g: g.macro[0], meaning=HELD_CLASSES),
    Score("recall", "recall", lambda g: g.macro[1], meaning=HELD_CLASSES),
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
RANKED = (  # of classes too; written to files, and shown where a run is judged by one
    Score("auc", "AUC", lambda g: _macro_mean(g, auc), meaning=HELD_CLASSES),
    Score(
        "average_precision",
        "average precision",
        lambda g: _macro_mean(g, average_precision),
        meaning=HELD_CLASSES,
    ),
    Score(
        "log_loss",
        "log loss",
        lambda g: log_loss(g.probabilities[np.arange(len(g.labels)), g.labels]),
        higher=False,
        share=False,
    ),
)
LEVELS = Score(  # of ordered classes
    "mae",
    "absolute error",
    lambda g: np.abs(g.classes - g.labels).mean(),
    higher=False,
    meaning="in levels",
    share=False,
)
OF_NUMBERS = (
    Score(
        "mae",
        "absolute error",
        lambda g: np.abs(g.errors).mean(),
        higher=False,
        meaning="in the unit of the label",
        share=False,
    ),
    Score(
        "rmse",
        "RMSE",
        lambda g: float(np.sqrt(np.square(g.errors).mean())),
        higher=False,
        meaning="in the unit of the label",
        share=False,
    ),
    Score("r2", "R2", _r2, meaning="the share of a client's variance explained", share=False),
    Score(
        "pinball",
        "pinball loss",
        lambda g: 0.5 * np.abs(g.errors).mean(),
        higher=False,
        meaning="at the median: half the absolute error",
        share=False,
    ),
)
OF_LABELS = (
    Score("accuracy", "accuracy", lambda g: g.right.mean(), meaning="share of correct labels"),
    Score("f1", "F1", lambda g: g.over(_label_f1)),
    Score("auc", "AUC", lambda g: g.over(auc)),
    Score("average_precision", "average precision", lambda g: g.over(average_precision)),
    Score(
        "log_loss",
        "log loss",
        lambda g: log_loss(np.where(g.labels > 0.5, g.probabilities, 1 - g.probabilities)),
        higher=False,
        share=False,
    ),
)


CONCORDANCE = Score(
    "concordance",
    "C-index",
    lambda g: concordance(g.truth, g.said),
    meaning="the share of comparable pairs in which who had the event earlier has the higher risk",
)


@dataclass(frozen=True)
class TokenPredictions:
    """What a model says of texts: after each token, the likeliest next one; or, whatever came
    before, the share of each.
    """

    tokens: np.ndarray  # [n, tokens], -1 where a text is over
    said: np.ndarray  # [n, tokens] whole numbers, or [n, vocabulary] shares

    @cached_property
    def next(self) -> np.ndarray:
        """Whether a token of [n, tokens - 1] is there to be predicted."""
        return np.asarray(self.tokens[:, 1:] >= 0)

    @cached_property
    def right(self) -> np.ndarray:
        """[tokens] of all texts but the first of each: whether it was the likeliest."""
        shares = self.said.dtype.kind == "f"
        likeliest = self.said.argmax(1)[:, None] if shares else self.said[:, :-1]
        return np.asarray((likeliest == self.tokens[:, 1:])[self.next])

    @cached_property
    def perplexity(self) -> float:
        """That of shares; NaN where only the likeliest tokens are known."""
        if self.said.dtype.kind != "f" or not self.next.any():
            return nan
        at = np.where(self.next, self.tokens[:, 1:], 0)
        known = at < self.said.shape[1]
        chance = np.take_along_axis(self.said, np.where(known, at, 0), 1) * known
        return float(np.exp(log_loss(chance[self.next])))


OF_TOKENS = (
    Score(
        "perplexity",
        "perplexity",
        lambda g: g.perplexity,  # of a model it is measured with the loss
        higher=False,
        meaning="the exponential of the mean loss of a client's tokens",
        share=False,
        ends=(1.0, inf),
    ),
    Score(
        "accuracy",
        "accuracy",
        lambda g: g.right.mean() if len(g.right) else nan,
        meaning="the share of tokens that were the likeliest next one",
    ),
)


class Scored(NamedTuple):
    """How tasks of one form are scored."""

    guesses: Callable[[np.ndarray, np.ndarray], Any]  # (truth, said) -> what its scores take
    scores: dict[str, Score]


def _by_name(*scores: Score) -> dict[str, Score]:
    return {score.name: score for score in scores}


SCORED = {  # by form, see coterie.core.task
    CLASS.name: Scored(
        lambda truth, said: ClassPredictions(truth.astype(int), said),
        _by_name(*SCORES, *RANKED, LEVELS),
    ),
    NUMBER.name: Scored(NumberPredictions, _by_name(*OF_NUMBERS)),
    LABELS.name: Scored(LabelPredictions, _by_name(*OF_LABELS)),
    TIME.name: Scored(NumberPredictions, _by_name(CONCORDANCE)),
    TOKENS.name: Scored(TokenPredictions, _by_name(*OF_TOKENS)),
}
SCORES_BY_NAME = {
    score.name: score
    for score in (*OF_NUMBERS, *OF_LABELS, *OF_TOKENS, *SCORES, *RANKED, LOSS, CONCORDANCE)
}


def find_score(name: str) -> Score:
    """What is known of a measure."""
    known = SCORES_BY_NAME.get(name) or _find_pinball(name)
    if known is None and is_function_name(name):  # it need not be there to be read of
        known = Score(name, name.partition(":")[2], lambda g: nan, share=False, ends=(-inf, inf))
    return known or LOSS._replace(name=name, label=name)


def _find_pinball(name: str) -> Score | None:
    """The pinball loss of a quantile, by its name."""
    kind, _, level = name.partition("_")
    if kind != "pinball" or not level.replace(".", "", 1).isdecimal():
        return None
    q = float(level)
    return Score(
        name,
        f"pinball loss of the {q:g} quantile",
        lambda g: np.maximum(-q * g.errors, (1 - q) * g.errors).mean(),
        higher=False,
        meaning="in the unit of the label",
        share=False,
    )


def scores_of(task: str) -> tuple[Score, ...]:
    """Every score of a task, the default one first."""
    learnt = find_task(task)
    if not learnt.scores:
        return ()
    known = SCORED[learnt.form.name].scores
    alike = [t for t in TASKS.values() if t.form.name == learnt.form.name]
    others = known.keys() - {name for t in alike for name in t.scores}
    mine = (*learnt.scores, *(name for name in known if name in others))
    return tuple(known.get(name) or find_score(name) for name in mine)


def default_measure_of(task: str) -> str:
    """What a run is judged by where no measure is named."""
    return find_task(task).measure


def check_metric(metric: str, task: str) -> None:
    """Refuse a measure that the task does not have."""
    valid = [score.name for score in (*scores_of(task), LOSS)]
    if is_function_name(metric):
        find_function(metric, "metric")
        return
    if metric and metric not in valid:
        close = find_alike(metric, valid)
        choices = f"choose from {', '.join(valid)}, or give module:function"
        raise BadInput(
            f"metric = {format_value(metric)} is no measure of a task of {task}; "
            f"{f'did you mean {close!r}?' if close else choices}"
        )


def predictions_of(task: str, truth: np.ndarray, said: np.ndarray) -> Any:
    """A client's rows and what a model says of them, as the scores of a task take them."""
    return SCORED[find_task(task).form.name].guesses(truth, said)


def score_task(
    task: str, truth: np.ndarray, said: np.ndarray, names: Sequence[str] | None = None
) -> dict[str, float]:
    """The scores of a task (all, or those of some names); NaN where there are no rows."""
    wanted = [s for s in scores_of(task) if names is None or s.name in names]
    own = [name for name in names or () if is_function_name(name)]
    if not len(truth):
        return dict.fromkeys((*(score.name for score in wanted), *own), nan)
    guesses = predictions_of(task, truth, said) if wanted else None
    found = {score.name: float(score.of(guesses)) for score in wanted}
    return found | {name: _score_by_function(name, truth, said) for name in own}


def _score_by_function(name: str, truth: np.ndarray, said: np.ndarray) -> float:
    """A metric of one's own: of labels and predictions, high where a model is good."""
    value = find_function(name, "metric")(truth, said)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"metric = '{name}' gives {format_value(value)}: give a number") from None


def score_classes(labels: ArrayLike, probabilities: ArrayLike) -> dict[str, float]:
    """Every score of classes from labels [n] and probabilities [n, K], or [n] of class 1; NaN
    where there are no rows.
    """
    y, p = np.asarray(labels).astype(int), np.asarray(probabilities, dtype=float)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=1)
    if len(p) != len(y):
        raise BadInput(f"{len(y)} labels, but probabilities of {len(p)} rows: give one row each")
    return score_task("classes", y, p, NAMES)


def trivial_scores_of(
    task: str, train: np.ndarray, truth: np.ndarray, classes: int
) -> dict[str, float]:
    """The scores of whoever knows nothing but a client's training targets.

    It gives every class the share that it has there, so that the most frequent one is guessed;
    numbers are guessed by their mean for RMSE and R2, by their median for the absolute errors.
    """
    found: dict[str, float] = {}
    for who in find_task(task).form.trivial:
        one = np.asarray(who.say(train, classes))
        said = np.tile(one, (len(truth), *(1 for _ in one.shape)))
        found |= score_task(task, truth, said, who.scores or None)
    return found
