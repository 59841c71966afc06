"""Prototypes: the mean features of each class, at a client and over clients; and the method whose
clients train networks of their own, held to common prototypes.

A class of which nobody has rows has no prototype; its row is 0 and `known` says so.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from coterie.core.errors import BadInput
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
from coterie.core.model import Descent, Model, begin, descend
from coterie.core.point import Leaves, Point, Vector
from coterie.core.rng import Rng
from coterie.core.split import Head, Split
from coterie.methods.declare import SupportedTasks

BY_CLASS = SupportedTasks(lambda task: task.has_classes, "takes the mean features of each class")
EVERY_ROW = BatchPlan(shuffle=False)  # one look at all training rows
NEVER = 1e9  # how much less likely a class without a prototype is


class ClassSums(NamedTuple):
    """Of each class at a client."""

    features: Tensor  # [C, d], their sum over its rows
    rows: Tensor  # [C]

    def add(self, z: Tensor, batch: Batch) -> "ClassSums":
        """With the rows of one more batch, whose features are z."""
        hot = mark_classes(batch, len(self.rows))
        return ClassSums(self.features + hot.T @ z, self.rows + hot.sum(0))

    def gap(self, z: Tensor, batch: Batch) -> Tensor:
        """Sum over the classes in a batch of the mean squared distance, by row and feature, of its
        rows' features from the prototype."""
        hot = mark_classes(batch, len(self.rows))
        apart = (z - hot @ self.means).square().mean(-1)
        return ((hot / hot.sum(0).clamp(min=1)).sum(-1) * apart).sum()

    @property
    def means(self) -> Tensor:
        """The prototypes [C, d]; 0 of a class without rows."""
        return self.features / self.rows.clamp(min=1).unsqueeze(-1)


class Prototypes(NamedTuple):
    """What clients share of each class."""

    means: Tensor  # [C, d]
    known: Tensor  # [C], 1 where there is one, else 0

    def gap(self, z: Tensor, batch: Batch) -> Tensor:
        """Mean over rows and features of the squared distance to the prototype of a row's class;
        rows of classes without one add 0."""
        hot = mark_classes(batch, len(self.known))
        apart = (z - hot @ self.means).square().mean(-1) * (hot * self.known).sum(-1)
        return apart.sum() / batch.mask.sum().clamp(min=1)


def hold_features(split: Split, w: Point, batch: Batch, shared: Prototypes, lam: float) -> Vector:
    """The gradient of the loss and `lam` times the distance of features to the prototypes."""

    def objective(params: Leaves, z: Tensor) -> Tensor:
        loss = split.model.data_loss(split.head(params, z, batch), batch)
        return loss + lam * shared.gap(z, batch)

    return split.gradients_of(objective, w, batch)[0]


def count_classes(model: Model) -> int:
    """Classes that a network tells apart; two may share one output."""
    return max(2, model.outputs)


def no_sums(split: Split) -> ClassSums:
    """Sums over no rows."""
    classes = count_classes(split.model)
    return ClassSums(torch.zeros(classes, split.width), torch.zeros(classes))


def no_prototypes(split: Split) -> Prototypes:
    """Before anybody has sent one."""
    return Prototypes(*no_sums(split))


def mark_classes(batch: Batch, classes: int) -> Tensor:
    """[B, C], 1 at the class of a real row, else 0."""
    hot = batch.y.unsqueeze(-1) == torch.arange(classes, device=batch.y.device)
    return hot.to(batch.mask.dtype) * batch.mask.unsqueeze(-1)


def average_prototypes(old: Prototypes, means: Tensor, weights: Tensor) -> Prototypes:
    """Means [m, C, d] of clients averaged by weights [m, C]; a class without weight stays."""
    mass = weights.sum(0)
    new = (weights.unsqueeze(-1) * means).sum(0) / mass.clamp(min=1e-12).unsqueeze(-1)
    seen = (mass > 0).to(old.known.dtype)
    return Prototypes(
        torch.where(mass.unsqueeze(-1) > 0, new, old.means), torch.maximum(old.known, seen)
    )


def find_margin(rows: Tensor, classes: Tensor, most: float) -> float:
    """The largest distance of a class's centre to the nearest other, at most so much; 0 of one
    class. Rows [n, d] are of classes [n].
    """
    q = torch.stack([rows[classes == j].mean(0) for j in classes.unique()])
    apart = torch.cdist(q, q).fill_diagonal_(torch.inf).min(1).values
    return min(float(apart.max()), most) if len(q) > 1 else 0.0


def predict_nearest(split: Split, w: Point, shared: Prototypes) -> Point:
    """The network whose head says which prototype is nearest to the features.

    Its logits are -|z - c_j|^2 up to |z|^2, which is the same for all classes: 2 z c_j - |c_j|^2.
    """
    weight = 2 * shared.means
    bias = -shared.means.square().sum(-1) - NEVER * (1 - shared.known)
    if split.model.outputs == 1:  # one logit says the second class less the first
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    head = {split.name("weight"): weight, split.name("bias"): bias}
    return Point(w.params | head, w.buffers)


class ProtoServer(NamedTuple):
    """The server's state."""

    shared: Prototypes
    seed: Tensor  # of the clients' start
    more: Any = ()  # what the server makes prototypes of


class Carry(NamedTuple):
    """A client's network on its way down, the prototypes it is held to, and its own sums."""

    go: Descent
    shared: Prototypes
    own: ClassSums


class ServerRules(NamedTuple):
    """What such methods differ in."""

    # (the server's state, means and rows of the clients) -> the state with new prototypes
    renew: Callable[[ProtoServer, ClassSums, Rng], ProtoServer]
    begin: Callable[[Split, Rng], Any] = lambda split, rng: ()  # what is `more` at the start


def check_widths(facts: Facts, head: Head, who: str) -> None:
    """Refuse networks whose features differ in number."""
    widths = {model.name: Split(model, head, who).width for model in facts.models}
    if len(set(widths.values())) > 1:
        said = ", ".join(f"{width} of {name}" for name, width in widths.items())
        raise BadInput(
            f"{who} compares features, and networks have different numbers of them ({said}): give "
            "networks whose heads are given equally many"
        )


def build_prototype_method(
    model: Model,
    train: Train,
    lam: float,
    head: Head,
    predict: Literal["prototype", "head"],
    who: str,
    rules: ServerRules,
) -> Method:
    """Clients train f_i(w) + lam mean_x |z - C_y|^2 / d, send the mean features of their classes,
    and are sent the C that the server makes of them."""
    split = Split(model, head, who, linear=True)

    def init(rng: Rng, facts: Facts) -> ProtoServer:
        check_widths(facts, head, who)
        seed = torch.tensor(int(rng.integers(2**63)))
        return ProtoServer(no_prototypes(split), seed, rules.begin(split, rng))

    def step(c: Carry, batch: Batch) -> Carry:
        gradient = hold_features(split, c.go.w, batch, c.shared, lam)
        return c._replace(go=descend(c.go, gradient, train, batch))

    def gather(c: Carry, batch: Batch) -> Carry:
        return c._replace(own=c.own.add(split.features(c.go.w, batch), batch))

    def receive(server: ProtoServer, replies: Replies, rng: Rng) -> ProtoServer:
        return rules.renew(server, replies.upload, rng)

    trip = Exchange(
        send=lambda server, i, rng: server._replace(more=()),
        start=lambda w, server: Carry(begin(w, train), server.shared, no_sums(split)),
        passes=(Pass(step, train.plan()), Pass(gather, EVERY_ROW)),
        finish=lambda c, w, server: (c.go.w, ClassSums(c.own.means, c.own.rows)),
        receive=receive,
    )
    views = {
        "head": lambda w, server: w,
        "prototype": lambda w, server: predict_nearest(split, w, server.shared),
    }
    return Method(
        init=init,
        join=lambda server, rng: model.start(int(server.seed)),
        round=(trip,),
        personal=views[predict],
        mixed=True,
        newcomer=Newcomer("trains its own network, held to the prototypes", rounds="all"),
    )
