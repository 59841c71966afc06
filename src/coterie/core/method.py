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

from coterie.core.options import BelowOne, LearningRate, NonNegative, NonNegativeInt, PositiveInt
from coterie.core.point import mean
from coterie.core.quantities import LoggedQuantity

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

    def one(self, j: int) -> Batch:
        """The j-th of several batches per step."""
        return Batch(*(field[j] for field in self))


class BatchPlan(NamedTuple):
    """Which batches a client takes in one pass."""

    # "train", "validation" or "public"; select and test rows are out of a method's reach
    part: str = "train"
    batch: int = 0  # rows per batch; 0: as many as fit one step of at most 1,024 rows
    epochs: int = 1  # used when steps is 0
    steps: int = 0  # steps, going round a reshuffled part
    batches: int = 1  # batches per step
    shuffle: bool = True
    share: float = 1.0  # a random share of the part, drawn for this pass
    draw: int = 0  # rows of this round's common draw of the public set; 0: all of it
    adaptive: bool = False  # the number of steps is what Exchange.steps says


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
    # scalars of a client, every round it was active
    client_notes: Callable[[Tree], dict[str, Tensor]] | None = None
    # what every note means, and any view that needs words: reports draw by it
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

    batch: PositiveInt = 16
    rate: LearningRate = 0.1
    epochs: NonNegativeInt = 1
    steps: NonNegativeInt = 0  # steps per round; counts instead of epochs when positive
    momentum: BelowOne = 0.0
    decay: NonNegative = 0.0  # L2 penalty on the parameters
    weighting: Literal["size", "equal"] = "size"  # "size": n_i / sum n_j

    def plan(self, **changes: Any) -> BatchPlan:
        """The local training pass."""
        return BatchPlan(batch=self.batch, epochs=self.epochs, steps=self.steps)._replace(**changes)

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
