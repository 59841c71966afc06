"""FedDF. Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated
Learning. NeurIPS 2020, Algorithms 1 and 3. arXiv:2006.07242. pFedDF: FedDF, then local
fine-tuning (a baseline of KT-pFL).

The server keeps a prototype of each architecture. A round averages the clients' models of each
architecture, and distils every average, on public rows, towards the ensemble of all models x
received, whatever their architecture:
    min_w mean_rows KL(softmax(mean_k logits(x_k)) || softmax(logits(w)))
by Adam with cosine decay; of numbers and counts, half the squared distance from the mean output.
Held-out rows of the draw say when to stop and which step to keep: the
start, if no other is better.
"""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from coterie.core.method import Batch, BatchPlan, Facts, Method, Pass, Replies, Train
from coterie.core.model import Model, masked_mean
from coterie.core.options import MAX_COUNT, InnerShare, NonNegativeInt, Positive, PositiveInt, Range
from coterie.core.point import Point, mean, pick, tree_map
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.methods.declare import SupportedTasks, extends, method
from coterie.methods.fedavg import fedavg
from coterie.methods.finetune import add_finetuning

CHECK_EVERY = 10  # steps between looks at the held-out rows
ROWS = 256  # rows predicted at once


KL_MEANING = "Of the prototypes on held-out public rows, before and after distillation."


class FedDFServer(NamedTuple):
    prototypes: tuple[Point, ...]  # one per architecture
    architecture: Tensor  # [N]
    # [architectures, 2], KL from the ensemble on held-out rows before and after the last
    # distillation
    gaps: Tensor


class DistillationBudget(NamedTuple):
    """How long a distillation may take, and on what."""

    batch: int
    steps: int  # at most
    patience: int  # steps without progress on the held-out rows
    rate: float
    held: float  # share of the draw
    clip: float


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Some rows of a batch; `place` says where they stood."""
    return Batch(batch.x[rows], batch.y[rows], batch.mask[rows], rows, batch.key)


def predict(model: Model, w: Point, public: Batch) -> Tensor:
    """Logits [R, K] of one model."""
    parts = torch.arange(len(public.y)).split(ROWS)
    return torch.cat([model.logits(w, rows_of(public, rows)) for rows in parts])


def ensemble(replies: Replies, public: Batch) -> Tensor:
    """The soft predictions of the mean outputs of all models received [R, K]."""
    logits = [
        predict(g.model, pick(g.upload, k), public)
        for g in replies.groups
        for k in range(len(g.ids))
    ]
    model: Model = replies.groups[0].model
    return model.goal.soften(torch.stack(logits).mean(0), 1.0)


def shuffle_batches(rows: Tensor, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Whole batches of rows, reshuffled each time they run out."""
    while True:
        order = rows[torch.as_tensor(rng.permutation(len(rows)))]
        yield from (part for part in order.split(size) if len(part) == size)


def distil(
    model: Model,
    w: Point,
    public: Batch,
    target: Tensor,
    budget: DistillationBudget,
    rng: np.random.Generator,
) -> tuple[Point, Tensor]:
    """The model after its distillation, and its KL from the target on held-out rows before and
    after [2]."""
    order = torch.as_tensor(rng.permutation(len(public.y)))
    held = rows_of(public, order[: max(1, int(budget.held * len(order)))])
    rest = order[len(held.y) :]
    batches = shuffle_batches(rest, min(budget.batch, len(rest)), rng)

    def far(outputs: Tensor, batch: Batch) -> Tensor:
        return masked_mean(model.goal.distance(target[batch.place], outputs, 1.0), batch)

    def gap(w: Point) -> float:
        return float(far(predict(model, w, held), held))

    student = Point(tree_map(torch.clone, w.params), w.buffers)
    adam = Adam(student.params.values(), lr=budget.rate)
    cosine = CosineAnnealingLR(adam, max(1, budget.steps))
    best, least, found = w, gap(w), 0
    first = least
    for s in range(1, budget.steps + 1):
        batch = rows_of(public, next(batches))._replace(key=torch.tensor(int(rng.integers(2**40))))
        g = model.grad(student, batch, far)
        for name, parameter in student.params.items():
            parameter.grad = g.params[name]
        clip_grad_norm_(student.params.values(), budget.clip)
        adam.step()
        cosine.step()
        student = Point(student.params, g.fresh or student.buffers)
        if s % CHECK_EVERY == 0 or s == budget.steps:
            now = gap(student)
            if now < least:
                best, least, found = (
                    Point(
                        {k: a.detach().clone() for k, a in student.params.items()}, student.buffers
                    ),
                    now,
                    s,
                )
            elif s - found >= budget.patience:
                break
    return best, torch.tensor([first, least])


@method(
    when="networks differ, one model per network is enough",
    tasks=SupportedTasks(lambda task: task.has_label, "distils class probabilities, or numbers"),
)
def feddf(
    model: Model,
    train: Train,
    draw: Annotated[int, Range(2, MAX_COUNT)] = 300,
    public_batch_size: PositiveInt = 128,
    distil_steps: NonNegativeInt = 100,
    patience: PositiveInt = 50,
    distil_lr: Positive = 1e-3,
    held: InnerShare = 0.2,
    clip: Positive = 5.0,
) -> Method:
    """FedAvg within each architecture, and distillation from all clients' models between them.

    draw: public rows used in a round, a share `held` of them to stop by.
    public_batch_size: public rows per step.
    distil_steps: Adam steps per round at most; 0: none (published: 10,000, patience 1,000).
    patience: steps without progress before distillation stops.
    distil_lr: learning rate of Adam.
    held: share of the round's public rows that decides when to stop.
    clip: the longest gradient of a step.
    """
    budget = DistillationBudget(public_batch_size, distil_steps, patience, distil_lr, held, clip)
    base = fedavg(model, train)

    def init(rng: Rng, facts: Facts) -> FedDFServer:
        prototypes = tuple(m.init(rng) for m in facts.models)
        return FedDFServer(prototypes, facts.architecture, torch.zeros(len(prototypes), 2))

    def receive(server: FedDFServer, replies: Replies, rng: Rng) -> FedDFServer:
        prototypes, gaps = list(server.prototypes), server.gaps.clone()
        public: Any = replies.public
        target: Any = ensemble(replies, public) if distil_steps else None
        for group in replies.groups:  # an architecture without answers keeps its prototype
            a = group.architecture
            prototypes[a] = mean(group.upload, train.weights(group))
            if distil_steps:
                prototypes[a], gaps[a] = distil(
                    group.model, prototypes[a], public, target, budget, rng
                )
        return server._replace(prototypes=tuple(prototypes), gaps=gaps)

    def admit(server: FedDFServer) -> FedDFServer:
        turn = len(server.architecture) % len(server.prototypes)
        return server._replace(architecture=torch.cat([server.architecture, torch.tensor([turn])]))

    trip = base.round[0]._replace(
        send=lambda server, i, rng: server.prototypes[int(server.architecture[i])],
        # no client steps on public rows: the second pass only names the draw that the server
        # distils on
        passes=(
            *base.round[0].passes,
            Pass(lambda c, batch: c, BatchPlan(part="public", draw=draw, epochs=0)),
        ),
        receive=receive,
    )
    return base._replace(
        init=init,
        round=(trip,),
        admit=admit,
        notes=lambda server: {"kl_before": server.gaps[:, 0], "kl_after": server.gaps[:, 1]},
        describes={
            "kl": LoggedQuantity("distance to the ensemble", QuantityKind.PAIR, "KL", KL_MEANING)
        },
        needs=frozenset({"public"}),
        mixed=True,
    )


@method(when="as feddf, then own epochs")
@extends(feddf)
def pfeddf(model: Model, train: Train, tune_epochs: PositiveInt = 20, **options: Any) -> Method:
    """FedDF whose clients fine-tune their architecture's prototype before use.

    tune_epochs: epochs of fine-tuning before use.
    """
    return add_finetuning(feddf(model, train, **options), train, tune_epochs)
