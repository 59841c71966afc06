"""PersFL. Divi: Unifying Distillation with Personalization in Federated Learning. Thesis, Purdue University, 2021, Algorithm 1.

Stage 1 is FedAvg; client k keeps as its teacher O_k the global model of lowest loss on its validation part (4.1):
    O_k = argmin over G_1 .. G_E of CE_validation(G_e).
Stage 2 is local: for every (lambda, T) of a grid a student A starts at O_k and descends on (4.2, Algorithm 1 line 18)
    (1 - lambda) CE(y, A) + lambda T^2 KL(softmax(O_k / T) || softmax(A / T)).

Readings taken: the stored loss is replaced only when it is beaten (lines 5-7 overwrite it first) and the earliest minimum wins;
a client validates the models it receives, never the random G_0. Teacher first in KL, as in the algorithm; (4.2) has the
student first ("kl_st"). PersFL-GD (6.1) has soft cross-entropy for KL, which differs by the teacher's entropy, a constant: the
two have one gradient, and what may tell the published ones apart is KL's mean over classes too ("elementwise"). The grid is
the one that the means of Table 6.5 are made of. A student's checkpoint after each epoch, and (lambda_k, T_k), are chosen by
validation accuracy, then validation loss, then the earlier epoch, the smaller lambda, the smaller T.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from coterie.core.errors import BadInput, nearest
from coterie.core.method import Batch, Exchange, Method, Pass, Plan, Stage, Train, Tree, unchanged
from coterie.core.model import Descent, Model, average, sgd
from coterie.core.notes import Kind, Note
from coterie.core.point import Point, mean, pick, tree

NOTES = {
    "teacher_round": Note(
        "round of the teacher",
        Kind.FINAL,
        meaning="The round whose global model did best on a client's validation rows and became its teacher.",
    ),
    "lambda": Note("chosen lambda", Kind.FINAL, meaning="The weight of the teacher, chosen on validation rows."),
    "T": Note("chosen temperature T", Kind.FINAL, meaning="The temperature of the teacher, chosen on validation rows."),
    "grid_accuracy": Note(
        "validation accuracy of the students",
        Kind.GRID,
        "%",
        meaning="Of the student that each pair trains. lambda is the weight of the teacher, T its "
        "temperature; without a teacher (lambda 0) T does not matter.",
    ),
    "teacher": Note("the teacher, before distillation", Kind.VIEW),
}
VALIDATION = Plan(part="validation", shuffle=False)
SOFT = {  # a value a row, of the log-probabilities t of the teacher and s of the student
    "kl_ts": lambda t, s: (t.exp() * (t - s)).sum(-1),
    "kl_st": lambda t, s: (s.exp() * (s - t)).sum(-1),
    "ce": lambda t, s: -(t.exp() * s).sum(-1),
}


class Models(NamedTuple):
    """The server's state and its payload: the last global model, or G_1 .. G_E where all are kept."""

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
        return choose(self.round > 0, self.w, other)


class Personal(NamedTuple):
    """A client's state in stage 2; lambda, T and accuracies are -1 before it has distilled."""

    teacher: Teacher
    w: Point
    lam: Tensor
    temperature: Tensor
    accuracy: Tensor  # [g], of every student on the validation part


class Tally(NamedTuple):
    """Sums over validation rows, for each of several models."""

    loss: Tensor  # [m]
    right: Tensor  # [m]
    rows: Tensor  # [m]


class Search(NamedTuple):
    """Carry of stage 1: the model FedAvg trains, and the received one on trial."""

    descent: Descent
    models: Models
    trial: Tally


class Best(NamedTuple):
    """A student's best checkpoint."""

    w: Point
    accuracy: Tensor
    loss: Tensor


class School(NamedTuple):
    """Carry of stage 2: received models on trial, then the teacher and its students, one for each of g points of the grid."""

    teacher: Teacher
    models: Models
    trial: Tally
    students: Descent  # [g, ...]
    tally: Tally
    best: Best  # [g, ...]


def choose(condition: Tensor, new: Tree, old: Tree) -> Tree:
    return tree(lambda a, b: torch.where(condition, a, b), new, old)


def take(stacked: Tree, k: Tensor) -> Tree:
    """Row k of a stack, k a tensor."""
    return tree(lambda a: a.index_select(0, k.reshape(1)).squeeze(0), stacked)


def repeat(w: Point, times: int) -> Point:
    return tree(lambda a: a.unsqueeze(0).repeat(times, *(1,) * a.dim()), w)


def empty(models: int) -> Tally:
    return Tally(torch.zeros(models), torch.zeros(models), torch.zeros(models))


def count(model: Model, models: Point, tally: Tally, batch: Batch) -> Tally:
    """A batch of validation rows more."""
    loss, right = vmap(lambda w: model.measure(w, batch))(models)
    return Tally(tally.loss + loss, tally.right + right, tally.rows + batch.mask.sum())


def adopt(teacher: Teacher, models: Models, trial: Tally, last: bool = False) -> Teacher:
    """The first model of lowest loss if it beats the teacher (4.1); `last`: the last model whatever its loss."""
    losses = trial.loss / trial.rows
    losses = torch.where(losses.isnan(), math.inf, losses)
    m = len(losses)
    k = torch.tensor(m - 1) if last else losses.argmin()
    new = Teacher(take(models.stack, k), take(losses, k), models.round - (m - 1) + k)
    return choose((new.round > 0) & ((new.loss < teacher.loss) | last), new, teacher)


def better(best: Best, new: Best) -> Best:
    """A student's better checkpoint: by accuracy, then loss, then the earlier; never a diverged one."""
    more = (new.accuracy > best.accuracy) & ~new.loss.isnan()
    return choose(more | (new.accuracy == best.accuracy) & (new.loss < best.loss), new, best)


def winner(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Index of the highest accuracy; ties: lowest loss, then the first, as the grid ascends in lambda, then T."""
    return torch.where(accuracy == accuracy.max(), loss, math.inf).argmin()


def find_teacher(model: Model, train: Train, last: bool, keep_models: bool) -> Method:
    """Stage 1: FedAvg whose clients validate what they receive."""
    begin, step = sgd(model, train)

    def receive(server: Models, replies, rng):
        new = repeat(mean(replies.upload, train.weights(replies)), 1)
        if keep_models and server.round > 0:
            new = tree(lambda a, b: torch.cat([a, b]), server.stack, new)
        return Models(new, server.round + 1)

    return Method(
        init=lambda rng, facts: Models(repeat(model.init(rng), 1), torch.tensor(0)),
        join=lambda models, rng: Teacher(models.last, torch.tensor(math.inf), torch.tensor(0)),
        round=(
            Exchange(
                send=lambda server, i, rng: Models(pick(server.stack, slice(-1, None)), server.round),
                start=lambda state, models: Search(begin(models.last), models, empty(1)),
                passes=(
                    Pass(lambda c, batch: c._replace(descent=step(c.descent, batch)), train.plan()),
                    Pass(lambda c, batch: c._replace(trial=count(model, c.models.stack, c.trial, batch)), VALIDATION),
                ),
                finish=lambda c, state, models: (adopt(state, models, c.trial, last), c.descent.w),
                receive=receive,
            ),
        ),
        personal=lambda state, models: models.last if last else state.or_else(models.last),
        views={"global": lambda state, models: models.last, "teacher": lambda state, models: state.or_else(models.last)},
        client_notes=lambda state: {"teacher_round": state.round},
        describes=NOTES,
        needs=frozenset({"validation"}),
    )


def distil_teacher(
    model: Model,
    train: Train,  # with the rate of distillation
    epochs: int,
    grid: list[tuple[float, float]],
    loss: Callable[[Tensor, Tensor, Tensor, Tensor, Batch], Tensor],  # (teacher's logits, student's, lambda, T, batch)
    first: Method,
    last: bool,
) -> tuple[Method, Callable[[Teacher], Personal]]:
    """Stage 2, and how a client's state enters it: all students of the grid are trained at once."""
    g, (lams, temps) = len(grid), torch.tensor(grid).unbind(1)

    def enter(state: Teacher) -> Personal:
        return Personal(state, state.w, torch.tensor(-1.0), torch.tensor(-1.0), torch.full((g,), -1.0))

    def start(state: Personal, models: Models) -> School:
        w = repeat(state.teacher.w, g)
        m = len(next(iter(models.stack.params.values())))
        best = Best(w, torch.full((g,), -1.0), torch.full((g,), math.inf))
        return School(state.teacher, models, empty(m), sgd(model, train)[0](w), empty(g), best)

    def enrol(c: School, _) -> School:
        teacher = adopt(c.teacher, c.models, c.trial, last)
        w = repeat(teacher.w, g)
        return c._replace(teacher=teacher, students=c.students._replace(w=w), best=c.best._replace(w=w))

    def learn(c: School, batch: Batch) -> School:
        target = model.logits(c.teacher.w, batch)

        def one(student: Descent, lam: Tensor, T: Tensor) -> Descent:
            return sgd(model, train, lambda logits, batch: loss(target, logits, lam, T, batch))[1](student, batch)

        return c._replace(students=vmap(one)(c.students, lams, temps))

    def examine(c: School, _) -> School:
        new = Best(c.students.w, c.tally.right / c.tally.rows, c.tally.loss / c.tally.rows)
        return c._replace(best=vmap(better)(c.best, new), tally=empty(g))

    def finish(c: School, state: Personal, models: Models):
        k = winner(c.best.accuracy, c.best.loss)
        return Personal(c.teacher, take(c.best.w, k), take(lams, k), take(temps, k), c.best.accuracy), ()

    def notes(state: Personal) -> dict[str, Tensor]:
        accuracies = {f"grid_accuracy[lambda={lam:g},T={T:g}]": state.accuracy[k] for k, (lam, T) in enumerate(grid)}
        return {"teacher_round": state.teacher.round, "lambda": state.lam, "T": state.temperature, **accuracies}

    epoch = (
        Pass(learn, train.plan(epochs=1, steps=0)),
        Pass(lambda c, batch: c._replace(tally=count(model, c.students.w, c.tally, batch)), VALIDATION),
        Pass(examine),
    )
    second = first._replace(
        join=lambda models, rng: enter(first.join(models, rng)),
        round=(
            Exchange(
                send=lambda server, i, rng: server,
                start=start,
                passes=(
                    Pass(lambda c, batch: c._replace(trial=count(model, c.models.stack, c.trial, batch)), VALIDATION),
                    Pass(enrol),
                    *epoch * epochs,
                ),
                finish=finish,
                receive=unchanged,
                copies=g,
            ),
        ),
        personal=lambda state, models: choose(state.lam >= 0, state.w, first.personal(state.teacher, models)),
        views={**first.views, "teacher": lambda state, models: state.teacher.or_else(models.last)},
        client_notes=notes,
    )
    return second, enter


def numbers(name: str, text: Any, fine: Callable[[float], bool], want: str) -> list[float]:
    """Ascending numbers of a comma-separated text."""
    try:
        found = sorted({float(part) for part in str(text).split(",")})
    except ValueError:
        raise BadInput(f"{name} = '{text}' is no list of numbers: write for instance 0.5 or 0.25,0.5") from None
    if not all(fine(v) for v in found):
        raise BadInput(f"{name} = '{text}': every value must be {want}")
    return found


def persfl(
    model: Model,
    train: Train,
    distil_epochs: int = 20,
    distil_rate: float = 0.0,
    lambdas: str = "0,0.25,0.5,0.75,1",
    temperatures: str = "1,5,25",
    soft: str = "kl_ts",
    reduction: str = "batchmean",
    teacher: str = "best",
    keep_models: bool = False,
) -> tuple[Stage, ...]:
    """FedAvg, then self-distillation from each client's best global model.

    distil_rate: 0 means the rate of training. teacher: "last" distils from the final model (Table 6.4). keep_models: the
    server keeps every G_e and sends them all in stage 2, so that a newcomer can find its teacher (7.1).
    """
    if model.task != "classes":
        raise BadInput(f"persfl distils over classes, but the task of {model.name} is '{model.task}': use local or ditto")
    if distil_epochs < 1:
        raise BadInput(f"distil_epochs = {distil_epochs}: distil for at least 1 epoch")
    if not distil_rate >= 0:
        raise BadInput(f"distil_rate = {distil_rate:g}: give a rate above 0, or 0 for that of training")
    for name, word, valid in (
        ("soft", soft, tuple(SOFT)),
        ("reduction", reduction, ("batchmean", "elementwise")),
        ("teacher", teacher, ("best", "last")),
    ):
        if word not in valid:
            raise BadInput(f"{name} = '{word}'{nearest(word, valid)}")
    lams = numbers("lambdas", lambdas, lambda v: 0 <= v <= 1, "between 0 and 1")
    temps = numbers("temperatures", temperatures, lambda v: 0 < v < math.inf, "above 0")
    grid = [(lam, T) for lam in lams for T in (temps if lam else temps[:1])]  # lambda = 0 makes T irrelevant

    def loss(target: Tensor, logits: Tensor, lam: Tensor, T: Tensor, batch: Batch) -> Tensor:
        rows = SOFT[soft](F.log_softmax(target / T, -1), F.log_softmax(logits / T, -1))
        share = 1 / logits.shape[-1] if reduction == "elementwise" else 1.0
        return (1 - lam) * model.data_loss(logits, batch) + lam * T**2 * share * average(rows, batch)

    last = teacher == "last"
    first = find_teacher(model, train, last, keep_models)
    tuned = train._replace(rate=distil_rate or train.rate)
    second, enter = distil_teacher(model, tuned, distil_epochs, grid, loss, first, last)
    return Stage("train", first), Stage("distil", second, rounds=1, everyone=True, enter_state=enter)


def persfl_gd(
    model: Model,
    train: Train,
    distil_epochs: int = 20,
    distil_rate: float = 0.0,
    lambdas: str = "0,0.25,0.5,0.75,1",
    temperatures: str = "1,5,25",
    reduction: str = "batchmean",
    teacher: str = "best",
    keep_models: bool = False,
) -> tuple[Stage, ...]:
    """PersFL-GD (6.1): PersFL with soft cross-entropy in the place of KL."""
    return persfl(model, train, distil_epochs, distil_rate, lambdas, temperatures, "ce", reduction, teacher, keep_models)
