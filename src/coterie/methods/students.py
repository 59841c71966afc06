"""Stage 2 of PersFL: each client trains a grid of students at once and keeps the best.

See `persfl` for the paper and the readings taken.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.method import Batch, Exchange, Method, Pass, Train, unchanged
from coterie.core.model import Descent, Model, sgd
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
    """A student's better checkpoint: by accuracy, then loss, then the earlier; never a diverged
    one."""
    more = (new.accuracy > best.accuracy) & ~new.loss.isnan()
    return choose(more | (new.accuracy == best.accuracy) & (new.loss < best.loss), new, best)


def winner(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Index of the highest accuracy; ties: lowest loss, then the first, as the grid ascends in
    lambda, then T."""
    return torch.where(accuracy == accuracy.max(), loss, math.inf).argmin()


def distil_teacher(
    model: Model,
    train: Train,  # with the rate of distillation
    epochs: int,
    grid: list[tuple[float, float]],
    # (teacher's logits, student's, lambda, T, batch)
    loss: Callable[[Tensor, Tensor, Tensor, Tensor, Batch], Tensor],
    first: Method,
    last: bool,
) -> tuple[Method, Callable[[Teacher], Personal]]:
    """Stage 2, and how a client's state enters it: all students of the grid are trained at once."""
    g, (lams, temps) = len(grid), torch.tensor(grid).unbind(1)

    def enter(state: Teacher) -> Personal:
        return Personal(
            state, state.w, torch.tensor(-1.0), torch.tensor(-1.0), torch.full((g,), -1.0)
        )

    def start(state: Personal, models: Models) -> School:
        w = repeat(state.teacher.w, g)
        m = len(next(iter(models.stack.params.values())))
        best = Best(w, torch.full((g,), -1.0), torch.full((g,), math.inf))
        return School(state.teacher, models, empty(m), sgd(model, train)[0](w), empty(g), best)

    def enrol(c: School, _) -> School:
        teacher = adopt(c.teacher, c.models, c.trial, last)
        w = repeat(teacher.w, g)
        return c._replace(
            teacher=teacher, students=c.students._replace(w=w), best=c.best._replace(w=w)
        )

    def learn(c: School, batch: Batch) -> School:
        target = model.logits(c.teacher.w, batch)

        def one(student: Descent, lam: Tensor, T: Tensor) -> Descent:
            return sgd(model, train, lambda logits, batch: loss(target, logits, lam, T, batch))[1](
                student, batch
            )

        return c._replace(students=vmap(one)(c.students, lams, temps))

    def examine(c: School, _) -> School:
        new = Best(c.students.w, c.tally.right / c.tally.rows, c.tally.loss / c.tally.rows)
        return c._replace(best=vmap(better)(c.best, new), tally=empty(g))

    def finish(c: School, state: Personal, models: Models):
        k = winner(c.best.accuracy, c.best.loss)
        return Personal(
            c.teacher, take(c.best.w, k), take(lams, k), take(temps, k), c.best.accuracy
        ), ()

    def notes(state: Personal) -> dict[str, Tensor]:
        accuracies = {
            f"grid_accuracy[lambda={lam:g},T={T:g}]": state.accuracy[k]
            for k, (lam, T) in enumerate(grid)
        }
        return {
            "teacher_round": state.teacher.round,
            "lambda": state.lam,
            "T": state.temperature,
            **accuracies,
        }

    epoch = (
        Pass(learn, train.plan(epochs=1, steps=0)),
        Pass(
            lambda c, batch: c._replace(tally=count(model, c.students.w, c.tally, batch)),
            VALIDATION,
        ),
        Pass(examine),
    )
    second = first._replace(
        join=lambda models, rng: enter(first.join(models, rng)),
        round=(
            Exchange(
                send=lambda server, i, rng: server,
                start=start,
                passes=(
                    Pass(
                        lambda c, batch: c._replace(
                            trial=count(model, c.models.stack, c.trial, batch)
                        ),
                        VALIDATION,
                    ),
                    Pass(enrol),
                    *epoch * epochs,
                ),
                finish=finish,
                receive=unchanged,
                copies=g,
            ),
        ),
        personal=lambda state, models: choose(
            state.lam >= 0, state.w, first.personal(state.teacher, models)
        ),
        views={**first.views, "teacher": lambda state, models: state.teacher.or_else(models.last)},
        client_notes=notes,
    )
    return second, enter
