"""Stage 2 of PersFL: each client trains a grid of students at once and keeps the best.

See `persfl` for the paper and the readings taken.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.device import here
from coterie.core.method import Batch, Exchange, Method, Newcomer, Pass, Train, unchanged
from coterie.core.model import Descent, Model, begin, sgd
from coterie.core.point import Point
from coterie.methods.teacher import (
    VALIDATION,
    Models,
    Tally,
    Teacher,
    adopt,
    choose,
    count,
    empty,
    repeat,
    take,
)

# (teacher's logits, student's, lambda, T, batch)
SoftLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Batch], Tensor]


class Personal(NamedTuple):
    """A client's state in stage 2; lambda, T and accuracies are -1 before it has distilled."""

    teacher: Teacher
    w: Point
    lam: Tensor
    temperature: Tensor
    accuracy: Tensor  # [g], of every student on the validation part


class Best(NamedTuple):
    """A student's best checkpoint."""

    w: Point
    accuracy: Tensor
    loss: Tensor


class School(NamedTuple):
    """Carry of stage 2: received models on trial, then the teacher and its students, one for each
    of g points of the grid."""

    teacher: Teacher
    models: Models
    trial: Tally
    students: Descent  # [g, ...]
    tally: Tally
    best: Best  # [g, ...]


def better(best: Best, new: Best) -> Best:
    """The better checkpoint: by accuracy, then loss, then the earlier; never a diverged one."""
    more = (new.accuracy > best.accuracy) & ~new.loss.isnan()
    return choose(more | (new.accuracy == best.accuracy) & (new.loss < best.loss), new, best)


def winner(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Index of the highest accuracy; ties: the lowest loss, then the first.

    The first has the smaller lambda, then the smaller T, as the grid ascends in them.
    """
    return torch.where(accuracy == accuracy.max(), loss, math.inf).argmin()


class Grid(NamedTuple):
    """The points of the grid: a student for each lambda and temperature."""

    points: list[tuple[float, float]]
    lams: Tensor  # [g]
    temps: Tensor  # [g]

    @property
    def size(self) -> int:
        return len(self.points)


def grid_of(lambdas: list[float], temperatures: list[float]) -> Grid:
    """All pairs, ascending; lambda = 0 makes T irrelevant and has one student only."""
    points = [(lam, T) for lam in lambdas for T in (temperatures if lam else temperatures[:1])]
    return Grid(points, *torch.tensor(points).unbind(1))


def before_school(teacher: Teacher, grid: Grid) -> Personal:
    """A client's state as it enters stage 2."""
    return Personal(
        teacher=teacher,
        w=teacher.w,
        lam=torch.tensor(-1.0),
        temperature=torch.tensor(-1.0),
        accuracy=torch.full((grid.size,), -1.0),
    )


def school_of(teacher: Teacher, models: Models, grid: Grid, train: Train) -> School:
    """The students at the teacher, before anything is validated."""
    w, g = repeat(teacher.w, grid.size), grid.size
    return School(
        teacher=teacher,
        models=models,
        trial=empty(len(next(iter(models.stack.params.values())))),
        students=begin(w, train),
        tally=empty(g),
        best=Best(w, torch.full((g,), -1.0), torch.full((g,), math.inf)),
    )


def lessons(model: Model, train: Train, grid: Grid, loss: SoftLoss) -> tuple[Pass, ...]:
    """One epoch of all students: they learn, are validated, and their best checkpoint is kept."""

    def learn(c: School, batch: Batch) -> School:
        target = model.logits(c.teacher.w, batch)

        def one(student: Descent, lam: Tensor, T: Tensor) -> Descent:
            _, step = sgd(model, train, lambda logits, batch: loss(target, logits, lam, T, batch))
            return step(student, batch)

        return c._replace(students=vmap(one)(c.students, *here((grid.lams, grid.temps))))

    def validate(c: School, batch: Batch) -> School:
        return c._replace(tally=count(model, c.students.w, c.tally, batch))

    def examine(c: School, _: None) -> School:
        new = Best(c.students.w, c.tally.right / c.tally.rows, c.tally.loss / c.tally.rows)
        return c._replace(best=vmap(better)(c.best, new), tally=empty(grid.size))

    return (
        Pass(learn, train.plan(epochs=1, steps=0)),
        Pass(validate, VALIDATION),
        Pass(examine),
    )


def graduate(c: School, grid: Grid) -> Personal:
    """A client's state after stage 2: the best student of the grid."""
    k = winner(c.best.accuracy, c.best.loss)
    return Personal(
        teacher=c.teacher,
        w=take(c.best.w, k),
        lam=take(here(grid.lams), k),
        temperature=take(here(grid.temps), k),
        accuracy=c.best.accuracy,
    )


def grid_notes(state: Personal, grid: Grid) -> dict[str, Tensor]:
    """What a client writes down: its teacher, its choice, and how every student did."""
    accuracies = {
        f"grid_accuracy[lambda={lam:g},T={T:g}]": state.accuracy[k]
        for k, (lam, T) in enumerate(grid.points)
    }
    chosen = {"lambda": state.lam, "T": state.temperature}
    return {"teacher_round": state.teacher.round, **chosen, **accuracies}


def distil_teacher(
    model: Model,
    train: Train,  # with the rate of distillation
    epochs: int,
    grid: Grid,
    loss: SoftLoss,
    first: Method,
    last: bool,
) -> Method:
    """Stage 2: all students of the grid are trained at once."""

    def validate(c: School, batch: Batch) -> School:
        return c._replace(trial=count(model, c.models.stack, c.trial, batch))

    def enrol(c: School, _: None) -> School:
        teacher = adopt(c.teacher, c.models, c.trial, last)
        w = repeat(teacher.w, grid.size)
        students, best = c.students._replace(w=w), c.best._replace(w=w)
        return c._replace(teacher=teacher, students=students, best=best)

    def personal(state: Personal, models: Models) -> Point:
        teacher: Point = first.personal(state.teacher, models)
        return choose(state.lam >= 0, state.w, teacher)

    trip = Exchange(
        send=lambda server, i, rng: server,
        start=lambda state, models: school_of(state.teacher, models, grid, train),
        passes=(
            Pass(validate, VALIDATION),
            Pass(enrol),
            *lessons(model, train, grid, loss) * epochs,
        ),
        finish=lambda c, state, models: (graduate(c, grid), ()),
        receive=unchanged,
        copies=grid.size,
    )
    teacher = {"teacher": lambda state, models: state.teacher.or_else(models.last)}
    return first._replace(
        join=lambda models, rng: before_school(first.join(models, rng), grid),
        round=(trip,),
        personal=personal,
        views={**first.views, **teacher},
        client_notes=lambda state: grid_notes(state, grid),
        newcomer=Newcomer(
            "picks the best global model that is kept as its teacher and distils", rounds=1
        ),
    )
