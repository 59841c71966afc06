"""What is learnt of a label: its task, and what the training rows say of it.

The task is guessed from the training rows alone where none is named: text, truth values and few
different whole numbers are classes; many different whole numbers, and numbers with a fraction, are
a regression. Targets of a regression are standardised by the training rows' mean and deviation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.functions import find_function
from coterie.core.task import TASKS, Goal, Refusal, Seen, choose_task
from coterie.data.arrays import FAR, measure_reach

Weights = tuple[tuple[float, ...], ...]


class Target(NamedTuple):
    """What a label is learnt as; all numbers are of training rows."""

    task: str
    columns: tuple[str, ...] = ()  # the label, or several labels
    centre: float = 0.0  # of a regression: what becomes 0; of counts: their mean
    spread: float = 1.0  # of a regression: what becomes 1
    # of classes in the loss: one row; of several labels: a row without and a row with each
    weights: Weights = ()
    loss: str = ""  # module:function in the place of the task's own
    forms: tuple[str, ...] = ()  # how each column spells numbers, see coterie.data.read.columns

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return self._asdict() | {"weights": [list(row) for row in self.weights]}

    def scale(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as a network learns them."""
        return TASKS[self.task].scale(numbers, self.centre, self.spread)

    def at(self, mean: float, deviation: float) -> Target:
        """The same, once mean and deviation of the training rows are known."""
        spread = deviation if TASKS[self.task].is_standardised else 1.0
        return self._replace(centre=mean, spread=spread)

    def outputs(self, classes: int) -> int:
        """How many outputs a network needs."""
        return TASKS[self.task].outputs(classes, len(self.columns))


def target_from_dict(settings: Mapping[str, Any]) -> Target:
    """A target as `to_dict` wrote it."""
    fixed = {
        "columns": tuple(settings["columns"]),
        "forms": tuple(settings.get("forms", ())),
        "weights": tuple(tuple(row) for row in settings["weights"]),
    }
    return Target(**({k: v for k, v in settings.items() if k in Target._fields} | fixed))


def default_target_of(classes: int) -> Target:
    """Of data that do not say more: classes, or vectors of numbers where there are none."""
    return Target(choose_task(classes).name)


def task_of(target: Target, one_logit: bool = False) -> Goal:
    """What a network learns; one_logit: it tells two classes apart by one output."""
    task = TASKS[target.task]
    goal = task.learn(target.centre, target.spread, target.weights, one_logit)
    return goal._replace(losses=partial(_own_losses, target.loss)) if target.loss else goal


def _own_losses(name: str, outputs: Tensor, y: Tensor) -> Tensor:
    """Found when it is called, as predictions need no loss."""
    found: Tensor = find_function(name, "loss")(outputs, y)
    return found


class Label(NamedTuple):
    """A label as the user's data have it."""

    columns: tuple[str, ...]
    numbers: np.ndarray | None  # [n] or [n, labels] as written; None: text
    table: bool = False  # of a table: whole numbers may be a quantity; those of arrays are classes
    forms: tuple[str, ...] = ()  # how each column spells numbers, see coterie.data.read.columns


class TaskGuess(NamedTuple):
    """What a label is read as, and the line that says so where it was guessed."""

    task: str
    said: str = ""


def guess_task(label: Label, train: np.ndarray, wanted: str | None, classes: int) -> TaskGuess:
    """The task of a label; only its training rows are looked at."""
    if wanted is not None:
        return TaskGuess(wanted)
    seen, said = _look(label, train, classes)
    task = next(task for task in reversed(TASKS.values()) if task.guess(seen))
    otherwise = task.otherwise if seen.table and seen.whole else ""
    if task.is_standardised and label.numbers is not None:
        reach = measure_reach(label.numbers[train])
        if reach > FAR:
            otherwise += (
                f"; its farthest lies {reach:,.0f} interquartile ranges from the median: --task "
                "huber is moved less by such ones"
            )
    return TaskGuess(task.name, f"{said} read as {task.name}{otherwise}")


def _look(label: Label, train: np.ndarray, classes: int) -> tuple[Seen, str]:
    """What the training rows show of a label, in words too."""
    name, columns = ", ".join(label.columns) or "the label", max(1, len(label.columns))
    if columns > 1:
        return Seen(columns, False, False, 0, label.table), f"{name}: {columns} labels,"
    if label.numbers is None:
        said = f"{name} has {classes:,} different texts:"
        return Seen(columns, True, False, classes, label.table), said
    numbers = label.numbers[train]
    whole, different = bool((numbers == np.floor(numbers)).all()), len(np.unique(numbers))
    values = f"{different:,} whole-number values" if whole else "numbers with a fraction"
    said = f"{name} has {values} in training rows:"
    return Seen(columns, False, whole, different, label.table), said


def check_label(label: Label, task: str, classes: int, place: Any, data: str) -> None:
    """Refuse a task that the label cannot be."""
    learnt, name = TASKS[task], label.columns[0] if label.columns else "the label"
    columns = max(1, len(label.columns))
    if not learnt.takes(columns):
        others = [t.name for t in TASKS.values() if t.has_label and t.takes(columns)]
        raise BadInput(
            f"'{data}': task = {task}, but there "
            + (
                f"are {columns} label columns; use --task {' or '.join(others)}"
                if columns > 1
                else "is one label column; name several with --label a,b,c"
            )
        )
    if label.numbers is None and (why := learnt.refuse_text(name)):
        raise BadInput(f"'{data}': {why}")
    refusal = learnt.refusal or learnt.form.refusal
    if label.numbers is not None and refusal is not None:
        _check_numbers(label, refusal, place, data)
    if not learnt.fits(classes):
        raise BadInput(
            f"'{data}': task = {task}, but '{name}' has {classes:,} different values; "
            f"use --task {learnt.instead}"
        )


def _check_numbers(label: Label, refusal: Refusal, place: Any, data: str) -> None:
    """Refuse the first number that cannot be."""
    values = np.asarray(label.numbers)
    found = np.argwhere(refusal.find(values))
    if not len(found):
        return
    at, *column = (int(k) for k in found[0])
    file, row = place.of(at) if place is not None else (data, at + 1)
    name = label.columns[sum(column)] if label.columns else "y"
    raise BadInput(
        f"{file}: column '{name}' is {values[tuple(found[0])]:g} in row {row:,}, which is "
        f"{refusal.what}; {refusal.way}mend it, or {refusal.other}"
    )


def fit_target(
    label: Label, task: str, y: np.ndarray, train: np.ndarray, classes: int, balanced: bool
) -> Target:
    """What the training rows say; no other row is read."""
    name = ", ".join(label.columns) or "the label"
    target, learnt = Target(task, label.columns, forms=label.forms), TASKS[task]
    if learnt.has_tokens:
        if balanced:
            raise BadInput(f"class_weights = balanced, but '{name}' has no classes; leave it out")
        return target
    if learnt.is_number:
        if balanced:
            raise BadInput(f"class_weights = balanced, but '{name}' has no classes; leave it out")
        if not learnt.has_units:
            return _check_events(target, target.scale(np.asarray(label.numbers)[train]), name)
        return _fit_numbers(target, np.asarray(label.numbers)[train], name)
    if learnt.several:
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
    return target.at(centre, spread)


def _check_events(target: Target, times: np.ndarray, name: str) -> Target:
    if not (times > 0).any():
        raise BadInput(f"'{name}' has no event in the training rows: nothing can be learnt")
    return target


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
