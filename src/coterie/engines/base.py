"""What every engine is: the border between a server and its clients, and the server's side of
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from coterie.core.device import CPU, to_default_device
from coterie.core.method import Batch, Method, Replies, Stage, Tree
from coterie.core.point import Point, pick, pick_ordered
from coterie.data.federation import PARTS, Federation
from coterie.engines.public_batches import draw_public_rows, public_tensors
from coterie.engines.settings import SEQUENTIAL, ExecutionSettings

TRAINING = "batches"  # what happens in a round of training, as its random streams call it
Send = Callable[[int], Tree]
Metrics = dict[tuple[str, str, str], np.ndarray]  # {(view, part, metric): [clients]}
Views = Iterator[
    tuple[int, list[int], dict[str, Point]]
]  # (architecture, clients, {view: stacked})
Predictions = Iterator[tuple[int, np.ndarray, np.ndarray]]  # (client, labels [n], chances [n, K])


class Moment(NamedTuple):
    """When something happens: names the random streams."""

    stage: str
    round: int
    kind: str = TRAINING


class Effort(NamedTuple):
    """What clients did in one exchange."""

    steps: int = 0  # client-steps: one client on one mini-batch, padding not counted
    gradients: int = (
        0  # evaluations in them: pFedMe takes K a step, Ditto two, a step that only scores none
    )

    def plus(self, other: Effort) -> Effort:
        return Effort(self.steps + other.steps, self.gradients + other.gradients)


class Traffic(NamedTuple):
    """Bytes that crossed the border in one exchange, and what clients did meanwhile."""

    down: int = 0  # to every client one by one
    broadcast: int = 0  # distinct payloads only
    up: int = 0
    steps: int = 0  # as in Effort
    gradients: int = 0

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(self, other, strict=True)))


class Uploads(NamedTuple):
    """What clients of one architecture sent back."""

    architecture: int
    clients: list[int]
    upload: Tree  # [m, ...]


class ExchangeRequest(NamedTuple):
    """One exchange of a round, as the loop asks for it."""

    number: int  # of the exchange in its round
    when: Moment
    clients: Sequence[int]
    send: Send
    answered: Set[int]  # clients that keep their new state
    averaged: Set[int]  # clients whose upload reaches the server if they answer
    # Addresses of the server's own storage: payloads that lie there count once for a broadcast.
    shared: frozenset[int] = frozenset()


class ExchangeResult(NamedTuple):
    """What came of one exchange."""

    replies: Replies
    traffic: Traffic
    answered: set[int]  # clients that keep what they made of it
    # clients that answered with what is not finite: their upload reaches nobody, they keep their
    # old state
    broken: frozenset[int] = frozenset()


class EngineSetup(NamedTuple):
    """What every engine is given."""

    federation: Federation
    models: Sequence[Any]
    programs: Sequence[tuple[Stage, ...]]  # the method's stages, built for each model
    architecture: np.ndarray  # [N] index into models
    seed: int = 0
    settings: Sequence[ExecutionSettings] = ()  # of each architecture; (): all are to be chosen
    rounds: int = 1  # of the whole run; a long one repays more preparation
    lengths: Sequence[int] = ()  # rounds of each stage; (): all have `rounds`
    share: float = 1.0  # of the clients that train in a round, in stages that do not ask everyone
    strict: bool = True  # whether steps that must be machine code and cannot be are refused
    metric: str = ""  # what the run is judged by; "": what its task always measures
    evaluations: int = 0  # of everybody in the whole run

    def alone(self) -> EngineSetup:
        """The same with one client after another, as real sites run."""
        return self._replace(settings=[SEQUENTIAL] * len(self.models))


class Engine(ABC):
    """Owns the clients' states and data; only payloads and uploads cross its border."""

    device = CPU  # where its tensors live; whoever lets it work makes theirs there too, `with on`

    def __init__(self, setup: EngineSetup):
        self.models, self.programs, self.seed = setup.models, setup.programs, setup.seed
        self.rounds, self.metric, self.evaluations = setup.rounds, setup.metric, setup.evaluations
        self.lengths, self.share, self.strict = setup.lengths, setup.share, setup.strict
        self.stage = 0
        self.use(setup.settings or [ExecutionSettings()] * len(setup.models))
        self.take(setup.federation, setup.architecture)

    def use(self, settings: Sequence[ExecutionSettings]) -> None:
        """Run the clients of each architecture as its settings say, from now on."""
        self.settings = list(settings)

    def take(self, federation: Federation, architecture: np.ndarray) -> None:
        """Work on this federation; it is given again when clients have come."""
        self.architecture = architecture
        self.sizes, self.public = federation.sizes, to_default_device(federation.public)

    def method(self, architecture: int) -> Method:
        return self.programs[architecture][self.stage].method

    def model_of(self, architecture: int, view: str) -> Any:
        """The network whose points a view gives."""
        return self.method(architecture).model_of.get(view, self.models[architecture])

    @abstractmethod
    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        """Let the clients work; those that answer keep their new state, those also averaged reach
        the server.
        """

    @abstractmethod
    def enter(self, stage: int) -> None:
        """Go to the next stage; its method may want client states of another form."""

    @abstractmethod
    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Metrics:
        """Loss and accuracy of every view on every part, NaN for an empty part.

        `final` adds the scores of test rows.
        """

    @abstractmethod
    def client_notes(self, clients: Sequence[int]) -> dict[str, dict[int, float]]:
        """What the method writes down of each client's state."""

    def unmeasured(self, part: str) -> Collection[int]:
        """Clients with rows of a part whose scores the last evaluation does not have, as those of a
        site that is away or keeps them.
        """
        return ()

    @abstractmethod
    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Views:
        """The clients' own models and other views; nothing where models stay with the clients."""

    @abstractmethod
    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Predictions:
        """What the clients' own models say of a part; nothing where they stay with the clients."""

    @abstractmethod
    def dump(self) -> Tree:
        """The clients' side of a checkpoint."""

    def mark_written(self) -> None:
        """What `dump` gave is on disk: changes are counted from here."""
        return

    def dump_changes(self) -> Tree | None:
        """The same of clients that changed since; None where that is not known."""
        return None

    @abstractmethod
    def restore(self, dumped: Tree, stage: int) -> None:
        """Put the clients where a checkpoint says."""

    def take_remarks(self) -> list[str]:
        """What whoever watches should know, once."""
        return []

    def begin(self) -> None:
        """Start what takes long, so that a failure is seen early and no round is timed with it."""
        return

    def finish(self, clients: Sequence[int], send: Send, when: Moment) -> None:
        """Let go of what was held for the run, which is over."""
        return

    # The server's side

    def replies(self, uploads: list[Uploads], when: Moment) -> Replies:
        """Uploads in the order of client ids, stacked as one if all architectures send the same."""
        groups = []
        for a in sorted({u.architecture for u in uploads}):
            mine = [u for u in uploads if u.architecture == a]
            ids = [i for u in mine for i in u.clients]
            whole = concat([u.upload for u in mine])
            order = sorted(range(len(ids)), key=lambda k: ids[k])
            picked = pick_ordered(whole, order, len(ids))
            groups.append(self._build_replies(a, [ids[k] for k in order], picked))
        if not groups:
            return Replies(torch.zeros(0, dtype=torch.int64), None, torch.zeros(0))
        public = self._public_batch(when)
        if len(groups) == 1:
            return groups[0]._replace(groups=(groups[0],), public=public)
        ids = [i for g in groups for i in g.ids.tolist()]
        order = sorted(range(len(ids)), key=lambda k: ids[k])
        upload = None
        if len({_structure_of(g.upload) for g in groups}) == 1:
            upload = pick(concat([g.upload for g in groups]), order)
        whole = self._build_replies(0, [ids[k] for k in order], upload)
        return whole._replace(groups=tuple(groups), public=public)

    def _build_replies(self, a: int, ids: list[int], upload: Tree) -> Replies:
        sizes = torch.as_tensor(self.sizes[ids], dtype=torch.get_default_dtype())
        return Replies(torch.tensor(ids), upload, sizes, architecture=a, model=self.models[a])

    def _public_batch(self, when: Moment) -> Batch | None:
        plans = [
            p.plan
            for e in self.method(0).round
            for p in e.passes
            if p.plan and p.plan.part == "public"
        ]
        if not plans or self.public is None:
            return None
        draw = draw_public_rows(self.public, self.seed, when.stage, when.round, plans[0].draw)
        rows = torch.as_tensor(draw)
        x, y = public_tensors(self.public, torch.get_default_dtype())
        return Batch(
            x[rows], y[rows], torch.ones(len(rows)), torch.arange(len(rows)), torch.tensor(0)
        )


def concat(trees: list[Tree]) -> Tree:
    """Stacks of trees joined into one stack."""
    return (
        trees[0] if len(trees) == 1 else pytree.tree_map(lambda *leaves: torch.cat(leaves), *trees)
    )


def _structure_of(tree: Tree) -> Any:
    leaves, spec = pytree.tree_flatten(tree)
    return str(spec), tuple((tuple(a.shape[1:]), a.dtype) for a in leaves)


def count_download(payloads: Sequence[Tree], sent: set[Any], shared: frozenset[int]) -> Traffic:
    """Bytes of payloads; a tensor that lies in the server's own storage is broadcast, any other is
    for one client.
    """
    down = broadcast = 0
    times = Counter(id(payload) for payload in payloads)  # one object may go to many clients
    for payload in {id(payload): payload for payload in payloads}.values():
        for leaf in pytree.tree_leaves(payload):
            size = leaf.nbytes * times[id(payload)]
            down += size
            if leaf.untyped_storage().data_ptr() not in shared:
                broadcast += size
                continue
            known = leaf.data_ptr(), tuple(leaf.shape)
            if known not in sent:
                broadcast += leaf.nbytes
                sent.add(known)
    return Traffic(down, broadcast)


def count_upload(upload: Tree, clients: int) -> int:
    """Bytes of so many clients' uploads, given stacked."""
    return sum(leaf[0].nbytes for leaf in pytree.tree_leaves(upload)) * clients if clients else 0
