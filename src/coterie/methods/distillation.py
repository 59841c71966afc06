"""Two exchanges per round over soft predictions: what KT-pFL, its variants and FedMD share.

1. A client trains on its private data, predicts the round's public rows and uploads the
predictions, never its model: so
   every client may have an architecture of its own.
2. The server answers with a target for the same rows, and the client distils: SGD on its distance
from the target. Both
   phases use a fresh optimizer with the momentum and decay of `[train]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.method import (
    Batch,
    BatchPlan,
    Exchange,
    Facts,
    Method,
    Newcomer,
    Pass,
    Replies,
    Train,
)
from coterie.core.model import Descent, Model, begin, masked_mean, optimize
from coterie.core.point import Point
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.core.rng import Rng
from coterie.core.task import find_task

MAX_MEASURED_ROWS = 512  # public rows on which the distance from the target is measured, if not all
GAP_MEANING = "Between a client's predictions on 512 public rows at most and what it is taught."
BEFORE_DISTILLATION = {
    "before_distillation": LoggedQuantity(
        "after private training, before it learns from others", QuantityKind.VIEW
    )
}


class DistillationState(NamedTuple):
    """A client's state."""

    w: Point  # its own model
    before: Point  # the same after private training, before the round's distillation
    # [2], mean distance from the target on the first public rows of a round: of `before`, of `w`
    gaps: Tensor


class DistillationServer(NamedTuple):
    """The server's state; what was said last is kept, so that a newcomer can learn from it."""

    seed: Tensor  # of the common start
    mix: Any  # what the method weighs clients by
    ids: Any = ()  # [m], who spoke
    said: Any = ()  # what they said


class PrivateCarry(NamedTuple):
    """Carry of the first exchange."""

    go: Descent
    said: Tensor  # [R + 1, K]; padded rows of a batch write into the last row, which nobody reads


class DistillationCarry(NamedTuple):
    """Carry of the second exchange."""

    go: Descent
    before: Point
    target: Tensor  # [R, K]
    gaps: Tensor


class Match(NamedTuple):
    """What clients say of public rows, and how they come near to a target."""

    name: str  # of the distance, in logged quantities
    say: Callable[[Tensor], Tensor]  # logits -> predictions to upload
    # (target, logits, batch) -> distance, mean over rows
    gap: Callable[[Tensor, Tensor, Batch], Tensor]
    weight: float  # of the distance in the objective


def match_soft(model: Model, temperature: float, lam: float, T2_scale: bool) -> Match:
    """lam KL(target || softmax(logits / T)), times T^2 where asked; of numbers, half the squared
    distance of outputs, which have no temperature."""
    goal, number = model.goal, find_task(model.task).is_number
    return Match(
        name="square" if number else "kl",
        say=lambda logits: goal.soften(logits, temperature),
        gap=lambda target, logits, batch: masked_mean(
            goal.distance(target, logits, temperature), batch
        ),
        weight=lam * (temperature**2 if T2_scale and not number else 1),
    )


class PublicOptions(NamedTuple):
    """How the public rows are used."""

    draw: int  # rows per round
    batch: int
    epochs: int  # of distillation
    rate: float  # of distillation; 0: that of private training

    @property
    def plan(self) -> BatchPlan:
        """One pass over the round's public rows."""
        return BatchPlan(part="public", batch_size=self.batch, draw=self.draw)

    @property
    def looks(self) -> int:
        """Batches on which the distance from the target is measured."""
        return -(-min(self.draw, MAX_MEASURED_ROWS) // self.batch)

    @property
    def measured(self) -> int:
        """Their rows."""
        return min(self.draw, self.looks * self.batch)


class ServerRules(NamedTuple):
    """The server's side, which is all that methods differ in."""

    mix: Callable[[Facts], Any]
    hear: Callable[[DistillationServer, Replies], DistillationServer]
    teach: Callable[[DistillationServer, int], Tensor]  # the target [R, K] of client i
    learn: Callable[[DistillationServer], DistillationServer]  # after the distillation


def build_prediction_exchange(
    model: Model, train: Train, match: Match, public: PublicOptions, answers: ServerRules
) -> Exchange:
    """The first exchange: private training, then predictions of the public rows."""
    begin, step = optimize(model, train)

    def private(c: PrivateCarry, batch: Batch) -> PrivateCarry:
        return c._replace(go=step(c.go, batch))

    def predict(c: PrivateCarry, batch: Batch) -> PrivateCarry:
        rows = match.say(model.logits(c.go.w, batch))
        return c._replace(said=c.said.index_copy(0, batch.place, rows))

    def start(state: DistillationState, seed: Tensor) -> PrivateCarry:
        return PrivateCarry(begin(state.w), torch.zeros(public.draw + 1, model.outputs))

    return Exchange(
        send=lambda server, i, rng: server.seed,
        start=start,
        passes=(
            Pass(private, train.plan()),
            Pass(predict, public.plan._replace(shuffle=False)),
        ),
        finish=lambda c, state, seed: (state._replace(w=c.go.w, before=c.go.w), c.said[:-1]),
        receive=lambda server, replies, rng: answers.hear(server, replies),
    )


def build_distillation_exchange(
    model: Model, train: Train, match: Match, public: PublicOptions, answers: ServerRules
) -> Exchange:
    """The second exchange: distillation towards the server's target."""
    gentle = train._replace(lr=public.rate or train.lr)

    def wanted(c: DistillationCarry, batch: Batch) -> Tensor:
        # padded rows: any, they do not count
        return c.target.index_select(0, batch.place.clamp(max=public.draw - 1))

    def distil(c: DistillationCarry, batch: Batch) -> DistillationCarry:
        target = wanted(c, batch)

        def loss(logits: Tensor, batch: Batch) -> Tensor:
            return match.weight * match.gap(target, logits, batch)

        return c._replace(go=optimize(model, gentle, loss)[1](c.go, batch))

    def measure(c: DistillationCarry, batch: Batch) -> DistillationCarry:
        target = wanted(c, batch)
        gaps = [match.gap(target, model.logits(w, batch), batch) for w in (c.before, c.go.w)]
        return c._replace(gaps=c.gaps + torch.stack(gaps) * batch.mask.sum() / public.measured)

    return Exchange(
        send=lambda server, i, rng: answers.teach(server, i),
        start=lambda state, target: DistillationCarry(
            begin(state.w, train), state.w, target, torch.zeros(2)
        ),
        passes=(
            Pass(distil, public.plan._replace(epochs=public.epochs, schedule=train.schedule)),
            Pass(measure, public.plan._replace(shuffle=False, steps=public.looks)),
        ),
        finish=lambda c, state, target: (state._replace(w=c.go.w, gaps=c.gaps), ()),
        receive=lambda server, replies, rng: answers.learn(server),
    )


def build_distillation_method(
    model: Model, train: Train, match: Match, public: PublicOptions, answers: ServerRules
) -> Method:
    """The method whose clients match on public rows and whose server answers so."""

    def join(seed: Tensor, rng: Rng) -> DistillationState:
        w = model.start(int(seed))
        return DistillationState(w, w, torch.zeros(2))

    def notes(state: DistillationState) -> dict[str, Tensor]:
        return {f"{match.name}_before": state.gaps[0], f"{match.name}_after": state.gaps[1]}

    return Method(
        init=lambda rng, facts: DistillationServer(
            torch.tensor(int(rng.integers(2**63))), answers.mix(facts)
        ),
        join=join,
        round=tuple(
            trip(model, train, match, public, answers)
            for trip in (build_prediction_exchange, build_distillation_exchange)
        ),
        personal=lambda state, seed: state.w,
        views={"before_distillation": lambda state, seed: state.before},
        client_notes=notes,
        describes={
            match.name: LoggedQuantity(
                "distance to the teacher", QuantityKind.PAIR, match.name.upper(), GAP_MEANING
            ),
            **BEFORE_DISTILLATION,
        },
        needs=frozenset({"public"}),
        mixed=True,
        newcomer=Newcomer("trains, and distils the clients' last soft predictions", rounds="all"),
    )
