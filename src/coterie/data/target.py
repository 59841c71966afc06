"""What is learnt of a label: its task, and what the training rows say of it.

The task is guessed from the training rows alone where none is named: text, truth values and few
different whole numbers are classes; many different whole numbers, and numbers with a fraction, are
a regression. Targets of a regression are standardised by the training rows' mean and deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from coterie.core import task as tasks
from coterie.core.errors import BadInput
from coterie.core.task import NUMBERS, Task

FEW = 20  # different whole numbers that are still read as classes
Weights = tuple[tuple[float, ...], ...]


class Target(NamedTuple):
    """What a label is learnt as; all numbers are of training rows."""

    task: str
    columns: tuple[str, ...] = ()  # the label, or several labels
    centre: float = 0.0  # of a regression: what becomes 0; of counts: their mean
    spread: float = 1.0  # of a regression: what becomes 1
    # of classes in the loss: one row; of several labels: a row without and a row with each
    weights: Weights = ()

    def words(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return self._asdict() | {"weights": [list(row) for row in self.weights]}

    def scaled(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as a network learns them."""
        if self.task == "regression":
            numbers = (numbers - self.centre) / self.spread
        return numbers.astype(np.float32)

    def outputs(self, classes: int) -> int:
        """How many outputs a network needs."""
        if self.task == "multilabel":
            return len(self.columns)
        if self.task == "ordinal":
            return classes - 1
        return classes or 1


def from_words(words: Mapping[str, Any]) -> Target:
    """A target as `words` wrote it."""
    fixed = {
        "columns": tuple(words["columns"]),
        "weights": tuple(tuple(row) for row in words["weights"]),
    }
    return Target(**({k: v for k, v in words.items() if k in Target._fields} | fixed))


def usual_target(classes: int) -> Target:
    """Of data that do not say more: classes, or vectors of numbers where there are none."""
    return Target("classes" if classes else "squared")


def task_of(target: Target, one_logit: bool = False) -> Task:
    """What a network learns; one_logit: it tells two classes apart by one output."""
    match target.task:
        case "regression":
            return tasks.regression(target.centre, target.spread)
        case "counts":
            return tasks.counts(target.centre)
        case "multilabel":
            return tasks.multilabel(target.weights)
        case "squared":
            return tasks.squared()
    weights = target.weights[0] if target.weights else ()
    if target.task == "ordinal":
        return tasks.ordinal(weights)
    return tasks.one_logit(weights) if one_logit else tasks.classes(weights)


class Label(NamedTuple):
    """A label as the user's data have it."""

    columns: tuple[str, ...]
    numbers: np.ndarray | None  # [n] or [n, labels] as written; None: text
    table: bool = False  # of a table: whole numbers may be a quantity; those of arrays are classes


class Reading(NamedTuple):
    """What a label is read as, and the line that says so where it was guessed."""

    task: str
    said: str = ""


def read_as(label: Label, train: np.ndarray, wanted: str | None, classes: int) -> Reading:
    """The task of a label; only its training rows are looked at."""
    numbers = None if label.numbers is None else label.numbers[train]
    name = ", ".join(label.columns) or "the label"
    if wanted is not None:
        return Reading(wanted)
    if len(label.columns) > 1:
        return Reading("multilabel", f"{name}: {len(label.columns)} labels, read as multilabel")
    if numbers is None:
        return _classes(f"{name} has {classes:,} different texts", classes)
    whole = bool((numbers == np.floor(numbers)).all())
    different = len(np.unique(numbers))
    if not whole:
        said = f"{name} has numbers with a fraction in training rows: read as regression"
        return Reading("regression", said)
    said = f"{name} has {different:,} whole-number values in training rows"
    if label.table and different > FEW:
        return Reading("regression", f"{said}: read as regression; --task classes for classes")
    if different == 2 or not label.table:
        return _classes(said, different)
    return Reading("classes", f"{said}: read as classes; --task regression for numbers")


def _classes(said: str, classes: int) -> Reading:
    task = "binary" if classes == 2 else "classes"
    return Reading(task, f"{said}: read as {task}")


def check_label(label: Label, task: str, classes: int, place: Any, data: str) -> None:
    """Refuse a task that the label cannot be."""
    name = label.columns[0] if label.columns else "the label"
    if (task == "multilabel") != (len(label.columns) > 1):
        raise BadInput(
            f"'{data}': task = {task}, but there "
            + (
                f"are {len(label.columns)} label columns; use --task multilabel"
                if len(label.columns) > 1
                else "is one label column; name several with --label a,b,c"
            )
        )
    if task in NUMBERS and label.numbers is None:
        raise BadInput(f"'{data}': '{name}' holds text, so it is no {task}; use --task classes")
    if task in (*NUMBERS, "multilabel"):
        if task == "counts":
            _refuse(label, lambda v: (v < 0) | (v != np.floor(v)), "no count", place, data)
        return
    if label.numbers is not None:
        _refuse(label, lambda v: v != np.floor(v), "no class", place, data)
    if task == "ordinal" and label.numbers is None:
        raise BadInput(
            f"'{data}': task = ordinal, but '{name}' holds text, whose order is not known; write "
            "its levels as 1, 2, 3, ..."
        )
    if task == "binary" and classes != 2:
        raise BadInput(
            f"'{data}': task = binary, but '{name}' has {classes:,} different values; "
            "use --task classes"
        )
    if task == "ordinal" and classes < 3:
        raise BadInput(
            f"'{data}': task = ordinal, but '{name}' has {classes:,} different values; "
            "use --task binary"
        )


def _refuse(label: Label, bad: Any, what: str, place: Any, data: str) -> None:
    """Refuse the first number that cannot be."""
    values = np.asarray(label.numbers)
    found = np.flatnonzero(bad(values))
    if not len(found):
        return
    file, row = place.of(int(found[0])) if place is not None else (data, int(found[0]) + 1)
    name = label.columns[0] if label.columns else "y"
    way = "a class is whole or text; " if what == "no class" else ""
    raise BadInput(
        f"{file}: column '{name}' is {values[found[0]]:g} in row {row:,}, which is {what}; "
        f"{way}mend it, or use --task regression"
    )


def fit_target(
    label: Label, task: str, y: np.ndarray, train: np.ndarray, classes: int, balanced: bool
) -> Target:
    """What the training rows say; no other row is read."""
    name = ", ".join(label.columns) or "the label"
    target = Target(task, label.columns)
    if task in NUMBERS:
        if balanced:
            raise BadInput(f"class_weights = balanced, but '{name}' has no classes; leave it out")
        return _fit_numbers(target, np.asarray(label.numbers)[train], name)
    if task == "multilabel":
        return _fit_labels(target, y[train], balanced)
    held = np.bincount(y[train], minlength=classes)
    if (held > 0).sum() < 2:
        raise BadInput(f"'{name}' has one class only in the training rows: nothing can be learnt")
    if not balanced:
        return target
    weights = np.where(held > 0, held.sum() / ((held > 0).sum() * np.maximum(held, 1)), 1.0)
    return target._replace(weights=(tuple(weights.tolist()),))


def _fit_numbers(target: Target, numbers: np.ndarray, name: str) -> Target:
    centre, spread = float(numbers.mean()), float(numbers.std())
    if spread == 0:
        raise BadInput(
            f"'{name}' is {centre:g} in every training row: there is nothing to learn of a constant"
        )
    return target._replace(centre=centre, spread=spread if target.task == "regression" else 1.0)


def _fit_labels(target: Target, y: np.ndarray, balanced: bool) -> Target:
    share = y.mean(0)
    for name, held in zip(target.columns, share, strict=True):
        if held in (0, 1):
            raise BadInput(
                f"'{name}' is {held:g} in every training row: nothing can be learnt; leave it out"
            )
    if not balanced:
        return target
    both = np.stack([0.5 / (1 - share), 0.5 / share])
    return target._replace(weights=tuple(tuple(row.tolist()) for row in both))
