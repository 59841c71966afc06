"""The contract: a method is a few pure functions.

Client code is written for one client, server code sees a stack of uploads. The engine owns client
states, data and the loop over mini-batches; nothing but a payload and an upload crosses its border,
exactly as on a network, so that one definition runs on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.core.augmentation import NONE as UNCHANGED
from coterie.core.options import BelowOne, LearningRate, NonNegative, NonNegativeInt, PositiveInt
from coterie.core.point import mean
from coterie.core.quantities import LoggedQuantity
from coterie.core.schedules import CONSTANT, fill_rounds

Tree = Any  # nested tuples, dicts, points and vectors of tensors
# (uploads [m, ...], weights [m] or [k, m]) -> one tree, or a stack of k
Average = Callable[[Any, Tensor], Any]


class Batch(NamedTuple):
    """Rows of one client for one step; padded rows have mask 0 and must not count."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    mask: Tensor  # [B], 1.0 for real rows
    # [B], position of a row in its part, or in the round's draw of the public set; padding has
    # the size of the draw
    place: Tensor
    key: Tensor  # scalar int64, seeds dropout in this step
    pace: Any = ()  # scalar, the share of the learning rate in this step; (): without a schedule

    def one(self, j: int) -> Batch:
        """The j-th of several batches per step."""
        return Batch(self.x[j], self.y[j], self.mask[j], self.place[j], self.key[j], self.pace)


class BatchPlan(NamedTuple):
    """Which batches a client takes in one pass."""

    # "train", "validation" or "public"; select and test rows are out of a method's reach
    part: str = "train"
    batch_size: int = 0  # rows per batch; 0: as many as fit one step of at most 1,024 rows
    epochs: int = 1  # used when steps is 0
    steps: int = 0  # steps, going round a reshuffled part
    batches: int = 1  # batches per step
    shuffle: bool = True
    share: float = 1.0  # a random share of the part, drawn for this pass
    draw: int = 0  # rows of this round's common draw of the public set; 0: all of it
    adaptive: bool = False  # the number of steps is what Exchange.steps says
    schedule: str = ""  # of the learning rate, as core.schedules reads it; "": none
    augment: str = ""  # of training rows, as core.augmentation reads it; "": none


class Pass(NamedTuple):
    """A loop over batches, `step(carry, batch) -> carry`; without a plan one step with no batch."""

    step: Callable[[Tree, Any], Tree]
    plan: BatchPlan | None = None


class Replies(NamedTuple):
    """What came back from the clients that answered and are averaged."""

    ids: Tensor  # [m]
    upload: Tree  # [m, ...]; None where architectures differ in what they upload: see groups
    sizes: Tensor  # [m], training rows
    groups: tuple[Replies, ...] = ()  # the same replies, one entry per architecture
    architecture: int = 0  # of an entry of groups
    model: Any = None  # the Model of an entry of groups
    public: Batch | None = None  # the round's draw of the public set, where a pass used it
    # how a server averages uploads: the weighted mean, or what `--robust` puts in its place
    average: Average = mean

    @property
    def weights(self) -> Tensor:
        """n_i / sum n_j over the replies."""
        return self.sizes / self.sizes.sum()

    @property
    def equal(self) -> Tensor:
        """1 / m each."""
        return torch.full_like(self.sizes, 1 / len(self.sizes))


class Exchange(NamedTuple):
    """One trip to the clients and back."""

    send: Callable[[Any, int, np.random.Generator], Tree]
    start: Callable[[Tree, Tree], Tree]  # (state, payload) -> carry
    passes: tuple[Pass, ...]
    # (carry, state, payload) -> (state, upload)
    finish: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
    receive: Callable[[Any, Replies, np.random.Generator], Any]
    # (state, payload, training rows) -> steps
    steps: Callable[[Tree, Tree, Tensor], Tensor] | None = None
    # (state, payload, training rows) -> state, before all else
    prepare: Callable[[Tree, Tree, Tensor], Tree] | None = None
    # models a client trains at once: chunks of clients are narrowed to fit the memory
    copies: int = 1


class Facts(NamedTuple):
    """What the server knows of the federation before it starts."""

    clients: int
    sizes: Tensor  # [N] training rows
    rate: float  # share of clients asked per round
    groups: Tensor  # [N] true groups (for the oracle only)
    models: tuple[Any, ...]  # a Model for each architecture
    architecture: Tensor  # [N] index into models
    classes: int
    public: int = 0  # rows of the public set


class Newcomer(NamedTuple):
    """A method's own rule for a client that comes after training."""

    rule: str  # in plain words, as the predicate of a sentence: "trains its own layers"
    # rounds of local work: "few" is what a run gives its newcomers, "all" what its clients had
    rounds: int | Literal["few", "all"] = "few"
    # the exchanges of such a round, whose `receive` moves what the server keeps for newcomers and
    # nothing else; (): those of the method, of which the server hears nothing
    round: tuple[Exchange, ...] = ()


class Method(NamedTuple):
    """Everything a method is; see the files in methods/ for examples."""

    init: Callable[[np.random.Generator, Facts], Any]
    join: Callable[[Tree, np.random.Generator], Tree]  # first contact, a newcomer's too
    round: tuple[Exchange, ...]
    personal: Callable[[Tree, Tree], Any]  # (state, payload) -> the client's own model
    personalize: Exchange | None = None  # before `personal`; its state is discarded after
    views: Mapping[str, Callable[[Tree, Tree], Any]] = {}
    # the Model of a view ("personal" too) that is not the client's architecture
    model_of: Mapping[str, Any] = {}
    admit: Callable[[Any], Any] | None = None
    notes: Callable[[Any], dict[str, Tensor]] | None = None  # of the server, every round
    # what the server has to say at the end of the stage, such as why it cannot work; "": nothing
    remark: Callable[[Any], str] | None = None
    # scalars of a client, every round it was active
    client_notes: Callable[[Tree], dict[str, Tensor]] | None = None
    # what every quantity means, and any view that needs words: reports draw by it
    describes: Mapping[str, LoggedQuantity] = {}
    needs: frozenset[str] = frozenset()  # "validation", "public", "groups"
    mixed: bool = False  # clients may have different architectures
    newcomer: Newcomer | None = None  # None: it fine-tunes the model that it is sent


class Stage(NamedTuple):
    """Some rounds of one method; a method of several stages is a tuple of these."""

    name: str
    method: Method
    rounds: int | None = None  # None: the rounds of the run
    everyone: bool = False  # all clients take part, whatever the run samples
    # server state of the stage before -> server state of this one
    enter: Callable[[Any, Facts], Any] | None = None
    enter_state: Callable[[Tree], Tree] | None = None  # the same for a client's state


class Train(NamedTuple):
    """What all methods share: the `[train]` table of an experiment."""

    batch_size: PositiveInt = 16  # rows per mini-batch
    lr: LearningRate = 0.1  # learning rate of local training
    local_epochs: NonNegativeInt = 1  # passes over a client's training rows per round
    local_steps: NonNegativeInt = 0  # local steps per round, instead of epochs; 0: epochs count
    momentum: BelowOne = 0.0  # momentum of local training
    weight_decay: NonNegative = 0.0  # weight decay: L2 penalty on the parameters
    # weights of uploads in the mean: "size" by training rows, n_i / sum n_j, or "equal"
    weighting: Literal["size", "equal"] = "size"
    # sgd, adam, adamw, rmsprop or adagrad, with settings as in adam:beta1=0.8
    optimizer: str = "sgd"
    nesterov: bool = False  # Nesterov's momentum, of sgd with momentum
    clip_norm: NonNegative = 0.0  # largest norm of a step's gradient; 0: not clipped
    keep_optimizer: bool = False  # a client's optimizer continues where its last round ended
    # learning rate over rounds or local steps: constant, step, exponential or cosine, with settings
    # as in cosine:warmup=5
    lr_schedule: str = CONSTANT
    # optimizer of the server on the mean update: none, sgd, adam, yogi or adagrad, with settings as
    # in adam:tau=0.01
    server_optimizer: str = "none"
    server_lr: NonNegative = 0.0  # its learning rate; 0: 1 of sgd, 0.1 of adagrad, 0.01 of others
    # what training images go through, drawn anew whenever one is read: none, crop:4 (a random crop
    # out of a black border of 4 pixels), flip (left to right, every other time), or crop:4,flip
    augment: str = UNCHANGED
    # no step of sgd is longer than Polyak's, lr <= 2 loss / |gradient|^2, so that it cannot
    # explode; auto: on tables and lists of numbers of one's own
    bound_steps: Literal["auto", "yes", "no"] = "auto"

    def plan(self, **changes: Any) -> BatchPlan:
        """The local training pass."""
        return BatchPlan(
            batch_size=self.batch_size,
            epochs=self.local_epochs,
            steps=self.local_steps,
            schedule=self.schedule,
            augment="" if self.augment == UNCHANGED else self.augment,
        )._replace(**changes)

    @property
    def schedule(self) -> str:
        """Of the learning rate, as a plan has it."""
        return "" if self.lr_schedule == CONSTANT else self.lr_schedule

    def over(self, rounds: int) -> Train:
        """The same in a run of so many rounds."""
        return self._replace(lr_schedule=fill_rounds(self.lr_schedule, rounds))

    def rate_at(self, batch: Batch | None) -> float | Tensor:
        """The learning rate of a step on a batch."""
        if not self.schedule:
            return self.lr
        if batch is None or isinstance(batch.pace, tuple):
            raise TypeError(
                f"lr_schedule = {self.lr_schedule}, but a step has no batch of a scheduled pass: "
                "give `descend` the batch, and the pass a plan of `train.plan`"
            )
        rate: Tensor = self.lr * batch.pace
        return rate

    def weights(self, replies: Replies) -> Tensor:
        """How uploads are averaged."""
        return replies.equal if self.weighting == "equal" else replies.weights


def stages_of(method: Method | tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A method as stages: its own, or one named "train"."""
    return (Stage("train", method),) if isinstance(method, Method) else method


def return_nothing(*_: Any) -> tuple[()]:
    """For a hook that has nothing to give: an empty payload, state or upload."""
    return ()


def keep_server(server: Any, *_: Any) -> Any:
    """For a `receive` that learns nothing."""
    return server
