"""Training that goes out of bounds: who is left out and why, and when a run must stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.analysis.client_scores import score_clients
from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import scores_of, trivial_scores_of
from coterie.core.errors import Diverged
from coterie.core.method import Train
from coterie.core.task import find_task
from coterie.data.client_rows import ClientRows, counts_of
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.target import task_of
from coterie.engines.base import Metrics

FAR_OUT = "scale the data, or mend what lies far out"
MAX_NAMES = 3  # clients that a line lists by name
LARGE_INPUT = 1e3  # an input beyond it is the likely cause, whatever the rate
EXPLODED = 1e6  # a loss beyond it is no result; labels have a deviation of 1, or are classes
CHUNK = 4096  # clients whose scores are counted at once


class Failure(NamedTuple):
    """Clients of one round whose updates are not finite."""

    round: int  # of all stages together
    clients: list[int]
    worked: int  # how many clients did any work
    names: str
    cause: str
    remedy: str  # what helps, as an order

    @property
    def fatal(self) -> bool:
        """Whether too few are left to go on with."""
        return 2 * len(self.clients) > self.worked

    def line(self) -> str:
        """What is said when the others go on."""
        return (
            f"round {self.round}: the update of {self.names} is not finite and is left out: "
            f"{self.cause}; {self.remedy} (said once)"
        )

    def facts(self) -> dict[str, Any]:
        """As run.json has it."""
        return {"round": self.round, "clients": self.clients, "of": self.worked, "why": self.why()}

    def why(self) -> str:
        """What is said when the run stops."""
        return (
            f"in round {self.round} the updates of {len(self.clients)} of {self.worked} clients "
            f"are not finite ({self.names}): {self.cause}"
        )


class RunDiverged(Diverged):
    """A run stopped in a round in which most updates are not finite."""

    def __init__(self, failure: Failure, way: str = ""):
        self.failure = failure
        super().__init__("; ".join(filter(None, [failure.why(), failure.remedy, way])))


def failure_of(
    round: int, failed: Collection[int], worked: int, federation: Federation, train: Train | None
) -> Failure:
    """What is known of the clients that failed in a round."""
    clients = sorted(failed)
    cause, remedy = _find_cause(clients, federation, train, ("train",))
    return Failure(
        round=round,
        clients=clients,
        worked=worked,
        names=format_clients([federation.names[i] for i in clients]),
        cause=cause,
        remedy=remedy,
    )


def _find_cause(
    clients: list[int], federation: Federation, train: Train | None, parts: Sequence[str]
) -> tuple[str, str]:
    """The likely cause, and what helps: the rows of these parts where they are to blame, else the
    rate.
    """
    for i in clients:
        largest = _find_largest_input(federation, i, parts)
        if not np.isfinite(largest):
            return f"the data of {federation.names[i]} hold NaN or infinity", "mend the data"
        if largest > LARGE_INPUT:
            return f"the data of {federation.names[i]} reach {largest:.3g}", FAR_OUT
    rate = "the learning rate" if train is None else f"train.lr = {train.lr:g}"
    return f"{rate} is likely too high", "lower --lr"


def _find_largest_input(federation: Federation, client: int, parts: Sequence[str]) -> float:
    rows = np.concatenate([part_of(federation, part)[client] for part in parts])
    if not len(rows) or not len(federation.x) or not federation.x.is_floating_point():
        return 0.0
    return float(federation.x[torch.from_numpy(rows)].abs().max())


def format_clients(names: Sequence[str]) -> str:
    """Names in a line, the first few of many."""
    more = len(names) - MAX_NAMES
    some = ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"client{'s' * (len(names) > 1)} {some}"


def find_unmeasurable(
    measured: Metrics,
    federation: Federation,
    unmeasured: Callable[[str], Collection[int]] = lambda part: (),  # see Engine.unmeasured
) -> dict[str, list[int]]:
    """{part: clients} whose own model has a loss out of all bounds on rows that they have."""
    found = {}
    for view, part, metric in measured:
        if view != "personal" or metric != "loss":
            continue
        loss = measured[view, part, "loss"]
        there = counts_of(part_of(federation, part)) > 0
        there[list(unmeasured(part))] = False
        bad = there & ~(loss < EXPLODED)
        if bad.any():
            found[part] = [int(i) for i in np.flatnonzero(bad)]
    return found


def report_unmeasurable(
    round: int, clients: list[int], federation: Federation, train: Train | None
) -> str:
    """That the loss of these clients' own models is out of all bounds."""
    cause, remedy = _find_cause(clients, federation, train, PARTS)
    names = format_clients([federation.names[i] for i in clients])
    return (
        f"round {round}: the loss of the own model of {names} is not finite or beyond "
        f"{EXPLODED:g}: {cause}; {remedy} (said once)"
    )


def measure_majority(federation: Federation) -> dict[str, float]:
    """{part: accuracy of always guessing the most frequent class of a client's training rows},
    mean over the clients that have such rows; nothing where labels are unknown.
    """
    if not federation.classes or federation.y.dim() != 1 or not len(federation.y):
        return {}
    y, found = federation.y.numpy(), {}
    train = ClientRows.of(federation.train)
    kinds = int(y.max()) + 1
    owned = np.bincount(
        train.owners() * kinds + y[train.concatenate()], minlength=len(train) * kinds
    )
    usual = owned.reshape(-1, kinds).argmax(1)
    for part in PARTS:
        held = ClientRows.of(part_of(federation, part))
        right = y[held.concatenate()] == usual[held.owners()]
        hits = np.bincount(held.owners(), weights=right, minlength=len(held))
        there = (held.counts > 0) & (train.counts > 0)
        if there.any():
            found[part] = float(np.mean(hits[there] / held.counts[there]))
    return found


def measure_trivial(federation: Federation) -> dict[str, float]:
    """{score: mean over clients}, on the shown part, of whoever knows nothing but a client's own
    training targets; nothing where labels are unknown.
    """
    target, part = federation.target, "test"
    if not find_task(target.task).scores or not len(federation.y):
        return {}
    y = task_of(target).truth(federation.y).numpy()
    train, tested = ClientRows.of(federation.train), ClientRows.of(part_of(federation, part))
    both = np.flatnonzero((train.counts > 0) & (tested.counts > 0))
    found = [
        _trivial_scores_of(target.task, y, train.only(some), tested.only(some), federation.classes)
        for some in np.split(both, range(CHUNK, len(both), CHUNK))
        if len(some)
    ]
    names = list(found[0]) if found else []
    means = {name: mean_of(np.concatenate([one[name] for one in found])) for name in names}
    return {name: mean for name, mean in means.items() if mean == mean}


def _trivial_scores_of(
    task: str, y: np.ndarray, train: ClientRows, tested: ClientRows, classes: int
) -> dict[str, np.ndarray]:
    """{score: [clients]} of whoever knows nothing but each client's own training targets."""
    if not find_task(task).has_classes:
        found = [
            trivial_scores_of(task, y[a], y[b], classes) for a, b in zip(train, tested, strict=True)
        ]
        return {name: np.array([one[name] for one in found]) for name in found[0]}
    owned = train.owners() * classes + y[train.concatenate()].astype(int)
    counts = np.bincount(owned, minlength=len(train) * classes).reshape(-1, classes)
    said = (counts / train.counts[:, None])[tested.owners()]
    names = [score.name for score in scores_of(task)]
    return score_clients(task, y[tested.concatenate()], said, tested.counts, names)
