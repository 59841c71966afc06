"""The Ray engine: every actor owns a shard of the clients, their data and states, and runs the
local engine on it.

The server's side (payloads, aggregation, traffic) stays in this process, and so does a copy of
every state: what a client's state becomes arrives with its upload. The copy makes checkpoints, and
it is where the clients of a lost actor go on from.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.values import Range
from coterie.data.federation import PARTS, Federation
from coterie.engines.base import (
    Measured,
    Moment,
    Outcome,
    Predictions,
    Send,
    Setup,
    Trip,
    Views,
)
from coterie.engines.local import states
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.stacks import balanced
from coterie.engines.local.work import Worked
from coterie.engines.ray.actors import (
    LOST,
    Job,
    Pool,
    Shard,
    arrays,
    knock,
    pack,
    ray_module,
    shard_of,
    tensors,
)

LIVES = 4  # actors that the same work may take down with it
BLOCK = 1024  # clients whose models or predictions are in this process at once


def deal(
    clients: Iterable[int],
    work: np.ndarray,
    architecture: np.ndarray,
    seats: Sequence[int],
    dealt: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """{client: seat}, most work first, each to the seat with the least work of its architecture,
    then the least of all.

    `dealt` are clients that have a seat already.
    """
    alike: dict[tuple[int, int], float] = {}
    whole = dict.fromkeys(seats, 0.0)
    out: dict[int, int] = {}

    def sit(i: int, seat: int) -> None:
        a = int(architecture[i])
        alike[a, seat] = alike.get((a, seat), 0.0) + work[i]
        whole[seat] += work[i]

    for i, seat in (dealt or {}).items():
        sit(i, seat)
    for i in sorted(clients, key=lambda i: (-work[i], i)):
        a = int(architecture[i])
        out[i] = min(seats, key=lambda seat: (alike.get((a, seat), 0.0), whole[seat], seat))
        sit(i, out[i])
    return out


class RayEngine(LocalEngine):
    """The local engine with its clients' work done by actors; `pool` gives actors that others use
    too.
    """

    def __init__(
        self,
        setup: Setup,
        address: str = "",
        actors: int = 0,
        threads: int = 1,  # per actor
        pool: Pool | None = None,
    ):
        if address:  # what is wrong is said before anything runs
            knock(address)
        ray_module(address)
        self._address, self._count, self._threads = address, actors, threads
        self.pool, self._lent = pool, pool is not None
        self._me = object()
        super().__init__(setup)

    def take(self, federation: Federation, architecture: np.ndarray) -> None:
        super().take(federation, architecture)
        self.federation = federation
        self._forget()

    def _forget(self) -> None:
        """The actors no longer hold what this process says; they are told all anew before the next
        task.
        """
        self.seat: dict[int, int] = {}  # of each client
        self._job: Any = None

    def enter(self, stage: int) -> None:
        super().enter(stage)
        if self.pool and self.pool.tenant is self._me:
            for seat in set(self.seat.values()):
                self.pool.actors[seat].enter.remote(stage)

    def restore(self, dumped: Tree, stage: int) -> None:
        super().restore(dumped, stage)
        self._forget()

    def begin(self) -> None:
        self._seated()

    def finish(self, clients: Sequence[int], send: Send, when: Moment) -> None:
        self._forget()
        if self.pool and not self._lent:
            self._close()
            self.pool = None

    # Who holds whom

    def _seated(self) -> Pool:
        """The actors, each with its clients."""
        if self.pool is None:
            self.pool = Pool(
                self._address, self._count, self._threads, most=self.federation.clients
            )
            self._close = weakref.finalize(self, self.pool.close)
        if self.pool.tenant is not self._me:
            self.pool.tenant = self._me
            self._forget()
        if not self.seat:
            self.seat = deal(
                range(len(self.sizes)), self._cost(), self.architecture, list(self.pool.actors)
            )
            job = Job(
                models=self.models,
                programs=self.programs,
                public=self.public,
                seed=self.seed,
                rounds=self.rounds,
                metric=self.metric,
                dtype=torch.get_default_dtype(),
            )
            self._job = self.pool.ray.put(job)
            self._place(self.pool, set(self.seat.values()))
        return self.pool

    def _cost(self) -> np.ndarray:
        """[N] what a round of each client costs, roughly: training rows times parameters."""
        parameters = [self.models[a].size for a in self.architecture]
        cost: np.ndarray = self.sizes * np.array(parameters)
        return cost

    def _place(self, pool: Pool, seats: set[int]) -> None:
        """Give the actors in some seats their clients as they stand here."""
        for _ in range(LIVES):
            waiting = {
                pool.actors[seat].hold.remote(self._job, self._shard(seat)): seat for seat in seats
            }
            lost = {seat for ref, seat in waiting.items() if pool.get(ref) is LOST}
            if not lost:
                return
            seats = self._replace(pool, lost)
        raise BadInput(_doomed([i for i, seat in self.seat.items() if seat in seats]))

    def _shard(self, seat: int) -> Shard:
        mine = [i for i, where in self.seat.items() if where == seat]
        held = [sorted(i for i in mine if i in store) for store in self.states]
        stacks = [
            arrays(store.gather(ids)) if ids else ()
            for store, ids in zip(self.states, held, strict=True)
        ]
        return Shard(
            shard_of(self.federation, mine),
            self.architecture,
            self.stage,
            list(zip(held, stacks, strict=True)),
        )

    def _replace(self, pool: Pool, lost: set[int]) -> set[int]:
        """New actors for the seats of lost ones, or the clients dealt to those left; the seats that
        must be told.
        """
        gone = {seat for seat in sorted(lost) if not pool.renew(seat)}
        if not pool.actors:
            raise BadInput(
                "every Ray actor was lost and no new one found a core: `coterie resume` goes on "
                "from the checkpoint"
            )
        if not gone:
            return lost
        homeless = [i for i, seat in self.seat.items() if seat in gone]
        kept = {i: seat for i, seat in self.seat.items() if seat not in gone}
        moved = deal(homeless, self._cost(), self.architecture, list(pool.actors), kept)
        self.seat = kept | moved
        return (lost - gone) | set(moved.values())

    # Work

    def _ask(self, what: str, payloads: dict[int, Tree], when: Moment, *rest: Any) -> Iterator[Any]:
        """What the actors make of a task for the clients of these payloads, as it comes in.

        The clients of a lost actor are asked again, as they stood before, after all others have
        answered.
        """
        pending = list(payloads)
        try:
            for _ in range(LIVES):
                lost = yield from self._ask_once(
                    what, {i: payloads[i] for i in pending}, when, *rest
                )
                if not lost:
                    return
                pending = [i for i in pending if self.seat[i] in lost]
                self._place(self._seated(), self._replace(self._seated(), lost))
            raise BadInput(_doomed(pending))
        except Exception:
            self._forget()  # some actors may have gone on
            raise

    def _ask_once(
        self, what: str, payloads: dict[int, Tree], when: Moment, *rest: Any
    ) -> Generator[Any, None, set[int]]:
        """One try; the seats of actors that were lost."""
        pool = self._seated()
        groups: dict[int, list[int]] = {}
        for i in payloads:
            groups.setdefault(self.seat[i], []).append(i)
        common, parcels = pack(payloads, list(groups.values()))
        beside = pool.ray.put(common)
        waiting = {
            pool.actors[seat].do.remote(what, beside, parcel, self.settings, when, *rest): seat
            for seat, parcel in zip(groups, parcels, strict=True)
        }
        lost = set()
        while waiting:
            (ref, *_), _ = pool.ray.wait(list(waiting), num_returns=1)
            seat, found = waiting.pop(ref), pool.get(ref)
            if found is LOST:
                lost.add(seat)
            else:
                yield found
        return lost

    def exchange(self, trip: Trip) -> Outcome:
        try:
            return super().exchange(trip)
        except BaseException:
            self._forget()  # some actors may have gone on
            raise

    def work(self, trip: Trip) -> Iterator[Worked]:
        payloads = {i: states.tensors(trip.send(i)) for i in sorted(trip.clients)}
        self._close_settings(payloads, trip)
        answered = trip.answered & set(trip.clients)
        for found in self._ask("work", payloads, trip.when, trip.number, answered):
            for a, chunk, effort, broken, state, upload in found:
                yield Worked(
                    architecture=a,
                    clients=chunk,
                    payloads=[payloads[i] for i in chunk],
                    state=tensors(state),
                    upload=tensors(upload),
                    effort=effort,
                    broken=broken,
                )

    def _close_settings(self, payloads: dict[int, Tree], trip: Trip) -> None:
        """Choose what the settings leave open: one actor times an architecture, all then run it
        alike.
        """
        for a, settings in enumerate(self.settings):
            mine = [i for i in payloads if self.architecture[i] == a]
            if not settings.open or not mine:
                continue
            self._seated()
            seats = sorted({self.seat[i] for i in mine})
            crowds = [[i for i in mine if self.seat[i] == seat] for seat in seats]
            largest = {i: payloads[i] for i in max(crowds, key=len)}
            for found in self._ask("choose", largest, trip.when, trip.number):
                self.settings[a] = found[a]

    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Measured:
        place = {i: k for k, i in enumerate(clients)}
        payloads = {i: states.tensors(send(i)) for i in sorted(clients)}
        out: Measured = {}
        for ids, measured in sorted(
            self._ask("evaluate", payloads, when, tuple(parts), final), key=lambda found: found[0]
        ):
            for key, column in measured.items():
                out.setdefault(key, np.full(len(clients), np.nan))[[place[i] for i in ids]] = column
        return out

    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Views:
        for block in balanced(sorted(clients), BLOCK):
            payloads = {i: states.tensors(send(i)) for i in block}
            for found in self._ask("points", payloads, when):
                for a, chunk, views in found:
                    yield a, chunk, tensors(views)

    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Predictions:
        for block in balanced(sorted(clients), BLOCK):
            payloads = {i: states.tensors(send(i)) for i in block}
            found = [
                entry for some in self._ask("predictions", payloads, when, part) for entry in some
            ]
            yield from sorted(found, key=lambda entry: entry[0])


def _doomed(clients: list[int]) -> str:
    few = ", ".join(map(str, sorted(clients)[:5])) + (", ..." if len(clients) > 5 else "")
    return (
        f"{LIVES} Ray actors were lost over the work of clients {few}: is there memory enough? "
        "Give fewer --actors a node"
    )


Actors = Annotated[int, Range(0, 1024)]  # 0: one per core


def ray(setup: Setup, threads: int, *, ray_address: str = "", actors: Actors = 0) -> RayEngine:
    """The engine of a Ray cluster: `ray_address` is HOST:PORT of its head, "" starts one here.

    `actors` = 0 gives one actor per core.
    """
    # The server's sums must be the same when the run is resumed, so its threads are never chosen.
    torch.set_num_threads(threads or 1)
    return RayEngine(setup, ray_address, actors, threads or 1)
