"""Stage 2 of PersFL: each client trains a grid of students at once and keeps the best.

See `persfl` for the paper and how it was interpreted.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.device import to_default_device
from coterie.core.method import Batch, Exchange, Method, Newcomer, Pass, Train, keep_server
from coterie.core.model import Descent, Model, begin, optimize
from coterie.core.point import Point
from coterie.methods.teacher import (
    VALIDATION,
    GlobalModels,
    Tally,
    Teacher,
    adopt,
    count_batch,
    empty_tally,
    repeat,
    select_where,
    take_row,
)

# (teacher's logits, student's, lambda, T, batch)
SoftLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Batch], Tensor]


class PersFLState(NamedTuple):
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


class StudentsCarry(NamedTuple):
    """Carry of stage 2: received models on trial, then the teacher and its students, one for each
    of g points of the grid."""

    teacher: Teacher
    models: GlobalModels
    trial: Tally
    students: Descent  # [g, ...]
    tally: Tally
    best: Best  # [g, ...]


def keep_better(best: Best, new: Best) -> Best:
    """The better checkpoint: by accuracy, then loss, then the earlier; never a diverged one."""
    more = (new.accuracy > best.accuracy) & ~new.loss.isnan()
    return select_where(more | (new.accuracy == best.accuracy) & (new.loss < best.loss), new, best)


def find_best(accuracy: Tensor, loss: Tensor) -> Tensor:
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


def init_state(teacher: Teacher, grid: Grid) -> PersFLState:
    """A client's state as it enters stage 2."""
    return PersFLState(
        teacher=teacher,
        w=teacher.w,
        lam=torch.tensor(-1.0),
        temperature=torch.tensor(-1.0),
        accuracy=torch.full((grid.size,), -1.0),
    )


def start_students(
    teacher: Teacher, models: GlobalModels, grid: Grid, train: Train
) -> StudentsCarry:
    """The students at the teacher, before anything is validated."""
    w, g = repeat(teacher.w, grid.size), grid.size
    return StudentsCarry(
        teacher=teacher,
        models=models,
        trial=empty_tally(len(next(iter(models.stack.params.values())))),
        students=vmap(lambda one: begin(one, train))(w),
        tally=empty_tally(g),
        best=Best(w, torch.full((g,), -1.0), torch.full((g,), math.inf)),
    )


def build_epoch(model: Model, train: Train, grid: Grid, loss: SoftLoss) -> tuple[Pass, ...]:
    """One epoch of all students: they learn, are validated, and their best checkpoint is kept."""

    def learn(c: StudentsCarry, batch: Batch) -> StudentsCarry:
        target = model.logits(c.teacher.w, batch)

        def one(student: Descent, lam: Tensor, T: Tensor) -> Descent:
            _, step = optimize(
                model, train, lambda logits, batch: loss(target, logits, lam, T, batch)
            )
            return step(student, batch)

        return c._replace(
            students=vmap(one)(c.students, *to_default_device((grid.lams, grid.temps)))
        )

    def validate(c: StudentsCarry, batch: Batch) -> StudentsCarry:
        return c._replace(tally=count_batch(model, c.students.w, c.tally, batch))

    def examine(c: StudentsCarry, _: None) -> StudentsCarry:
        new = Best(c.students.w, c.tally.right / c.tally.rows, c.tally.loss / c.tally.rows)
        return c._replace(best=vmap(keep_better)(c.best, new), tally=empty_tally(grid.size))

    return (
        Pass(learn, train.plan(epochs=1, steps=0)),
        Pass(validate, VALIDATION),
        Pass(examine),
    )


def select_student(c: StudentsCarry, grid: Grid) -> PersFLState:
    """A client's state after stage 2: the best student of the grid."""
    k = find_best(c.best.accuracy, c.best.loss)
    return PersFLState(
        teacher=c.teacher,
        w=take_row(c.best.w, k),
        lam=take_row(to_default_device(grid.lams), k),
        temperature=take_row(to_default_device(grid.temps), k),
        accuracy=c.best.accuracy,
    )


def logged_grid(state: PersFLState, grid: Grid) -> dict[str, Tensor]:
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

    def validate(c: StudentsCarry, batch: Batch) -> StudentsCarry:
        return c._replace(trial=count_batch(model, c.models.stack, c.trial, batch))

    def enrol(c: StudentsCarry, _: None) -> StudentsCarry:
        teacher = adopt(c.teacher, c.models, c.trial, last)
        w = repeat(teacher.w, grid.size)
        students, best = c.students._replace(w=w), c.best._replace(w=w)
        return c._replace(teacher=teacher, students=students, best=best)

    def personal(state: PersFLState, models: GlobalModels) -> Point:
        teacher: Point = first.personal(state.teacher, models)
        return select_where(state.lam >= 0, state.w, teacher)

    trip = Exchange(
        send=lambda server, i, rng: server,
        start=lambda state, models: start_students(state.teacher, models, grid, train),
        passes=(
            Pass(validate, VALIDATION),
            Pass(enrol),
            *build_epoch(model, train, grid, loss) * epochs,
        ),
        finish=lambda c, state, models: (select_student(c, grid), ()),
        receive=keep_server,
        copies=grid.size,
    )
    teacher = {"teacher": lambda state, models: state.teacher.or_else(models.last)}
    return first._replace(
        join=lambda models, rng: init_state(first.join(models, rng), grid),
        round=(trip,),
        personal=personal,
        views={**first.views, **teacher},
        client_notes=lambda state: logged_grid(state, grid),
        newcomer=Newcomer(
            "picks the best global model that is kept as its teacher and distils", rounds=1
        ),
    )
