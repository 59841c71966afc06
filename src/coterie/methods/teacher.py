"""Stage 1 of PersFL: FedAvg whose clients keep the best global model they have seen as their
teacher.

See `persfl` for the paper and how it was interpreted.
"""

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from coterie.core.method import Batch, BatchPlan, Exchange, Method, Pass, Replies, Train
from coterie.core.model import Descent, Model, optimize
from coterie.core.point import Point, pick, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng

T = TypeVar("T")
VALIDATION = BatchPlan(part="validation", shuffle=False)
QUANTITIES = {
    "teacher_round": LoggedQuantity(
        "round of the teacher",
        QuantityKind.FINAL,
        meaning="The round whose global model did best on a client's validation rows.",
    ),
    "lambda": LoggedQuantity(
        "chosen lambda",
        QuantityKind.FINAL,
        meaning="The weight of the teacher, chosen on validation rows.",
    ),
    "T": LoggedQuantity(
        "chosen temperature T",
        QuantityKind.FINAL,
        meaning="The temperature of the teacher, chosen on validation rows.",
    ),
    "grid_accuracy": LoggedQuantity(
        "validation accuracy of the students",
        QuantityKind.GRID,
        "%",
        meaning="Of the student that each pair trains. lambda is the weight of the teacher, T its "
        "temperature; without a teacher (lambda 0) T does not matter.",
    ),
    "teacher": LoggedQuantity("the teacher, before distillation", QuantityKind.VIEW),
}


class GlobalModels(NamedTuple):
    """The server's state and its payload: the last global model, or G_1 .. G_E where all are
    kept."""

    stack: Point  # [m, ...]
    round: Tensor  # of the last of them; 0: the random start

    @property
    def last(self) -> Point:
        return pick(self.stack, -1)


class Teacher(NamedTuple):
    """The best global model a client has seen, its state in stage 1; round 0: none yet."""

    w: Point
    loss: Tensor  # on the validation part
    round: Tensor

    def or_else(self, other: Point) -> Point:
        return select_where(self.round > 0, self.w, other)


class Tally(NamedTuple):
    """Sums over validation rows, for each of several models."""

    loss: Tensor  # [m]
    right: Tensor  # [m]
    rows: Tensor  # [m]


class TeacherCarry(NamedTuple):
    """Carry of stage 1: the model FedAvg trains, and the received one on trial."""

    descent: Descent
    models: GlobalModels
    trial: Tally


def select_where(condition: Tensor, new: T, old: T) -> T:
    """`new` where the condition holds, `old` elsewhere."""
    return tree_map(lambda a, b: torch.where(condition, a, b), new, old)


def take_row(stacked: T, k: Tensor) -> T:
    """Row k of a stack, k a tensor."""
    return tree_map(lambda a: a.index_select(0, k.reshape(1)).squeeze(0), stacked)


def repeat(w: Point, times: int) -> Point:
    return tree_map(lambda a: a.unsqueeze(0).repeat(times, *(1,) * a.dim()), w)


def empty_tally(models: int) -> Tally:
    return Tally(torch.zeros(models), torch.zeros(models), torch.zeros(models))


def count_batch(model: Model, models: Point, tally: Tally, batch: Batch) -> Tally:
    """A batch of validation rows more."""
    loss, right = vmap(lambda w: model.measure(w, batch))(models)
    return Tally(tally.loss + loss, tally.right + right, tally.rows + batch.mask.sum())


def adopt(teacher: Teacher, models: GlobalModels, trial: Tally, last: bool = False) -> Teacher:
    """The first model of lowest loss if it beats the teacher (4.1); `last`: the last model whatever
    its loss."""
    losses = trial.loss / trial.rows
    losses = torch.where(losses.isnan(), math.inf, losses)
    m = len(losses)
    k = torch.tensor(m - 1) if last else losses.argmin()
    new = Teacher(take_row(models.stack, k), take_row(losses, k), models.round - (m - 1) + k)
    return select_where((new.round > 0) & ((new.loss < teacher.loss) | last), new, teacher)


def find_teacher(model: Model, train: Train, last: bool, keep_models: bool) -> Method:
    """Stage 1: FedAvg whose clients validate what they receive."""
    begin, step = optimize(model, train)

    def receive(server: GlobalModels, replies: Replies, rng: Rng) -> GlobalModels:
        new = repeat(replies.average(replies.upload, train.weights(replies)), 1)
        if keep_models and server.round > 0:
            new = tree_map(lambda a, b: torch.cat([a, b]), server.stack, new)
        return GlobalModels(new, server.round + 1)

    return Method(
        init=lambda rng, facts: GlobalModels(repeat(model.init(rng), 1), torch.tensor(0)),
        join=lambda models, rng: Teacher(models.last, torch.tensor(math.inf), torch.tensor(0)),
        round=(
            Exchange(
                send=lambda server, i, rng: GlobalModels(
                    pick(server.stack, slice(-1, None)), server.round
                ),
                start=lambda state, models: TeacherCarry(
                    begin(models.last), models, empty_tally(1)
                ),
                passes=(
                    Pass(lambda c, batch: c._replace(descent=step(c.descent, batch)), train.plan()),
                    Pass(
                        lambda c, batch: c._replace(
                            trial=count_batch(model, c.models.stack, c.trial, batch)
                        ),
                        VALIDATION,
                    ),
                ),
                finish=lambda c, state, models: (adopt(state, models, c.trial, last), c.descent.w),
                receive=receive,
            ),
        ),
        personal=lambda state, models: models.last if last else state.or_else(models.last),
        views={
            "global": lambda state, models: models.last,
            "teacher": lambda state, models: state.or_else(models.last),
        },
        client_notes=lambda state: {"teacher_round": state.round},
        describes=QUANTITIES,
        needs=frozenset({"validation"}),
    )
