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
from coterie.core.options import Range
from coterie.data.federation import PARTS, Federation
from coterie.engines.base import (
    EngineSetup,
    ExchangeRequest,
    ExchangeResult,
    Metrics,
    Moment,
    Predictions,
    Send,
    Views,
)
from coterie.engines.local import states
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.stacks import split_chunks
from coterie.engines.local.work import ChunkResult
from coterie.engines.ray.actors import (
    LOST,
    ActorJob,
    ActorPool,
    Shard,
    check_address,
    from_arrays,
    pack,
    ray_module,
    shard_of,
    to_arrays,
)

MAX_LOST_ACTORS = 4  # actors that the same work may take down with it
BLOCK = 1024  # clients whose models or predictions are in this process at once


def assign_seats(
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
        setup: EngineSetup,
        address: str = "",
        actors: int = 0,
        threads: int = 1,  # per actor
        pool: ActorPool | None = None,
    ):
        if address:  # what is wrong is said before anything runs
            check_address(address)
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
        self._seat_clients()

    def finish(self, clients: Sequence[int], send: Send, when: Moment) -> None:
        self._forget()
        if self.pool and not self._lent:
            self._close()
            self.pool = None

    # Who holds whom

    def _seat_clients(self) -> ActorPool:
        """The actors, each with its clients."""
        if self.pool is None:
            self.pool = ActorPool(
                self._address, self._count, self._threads, most=self.federation.clients
            )
            self._close = weakref.finalize(self, self.pool.close)
        if self.pool.tenant is not self._me:
            self.pool.tenant = self._me
            self._forget()
        if not self.seat:
            self.seat = assign_seats(
                range(len(self.sizes)), self._cost(), self.architecture, list(self.pool.actors)
            )
            job = ActorJob(
                models=self.models,
                programs=self.programs,
                public=self.public,
                seed=self.seed,
                rounds=self.rounds,
                strict=self.strict,
                metric=self.metric,
                dtype=torch.get_default_dtype(),
            )
            self._job = self.pool.ray.put(job)
            self._load_shards(self.pool, set(self.seat.values()))
        return self.pool

    def _cost(self) -> np.ndarray:
        """[N] what a round of each client costs, roughly: training rows times parameters."""
        parameters = [self.models[a].size for a in self.architecture]
        cost: np.ndarray = self.sizes * np.array(parameters)
        return cost

    def _load_shards(self, pool: ActorPool, seats: set[int]) -> None:
        """Give the actors in some seats their clients as they stand here."""
        for _ in range(MAX_LOST_ACTORS):
            waiting = {
                pool.actors[seat].hold.remote(self._job, self._shard(seat)): seat for seat in seats
            }
            lost = {seat for ref, seat in waiting.items() if pool.get(ref) is LOST}
            if not lost:
                return
            seats = self._replace(pool, lost)
        raise BadInput(_format_lost([i for i, seat in self.seat.items() if seat in seats]))

    def _shard(self, seat: int) -> Shard:
        mine = [i for i, where in self.seat.items() if where == seat]
        held = [sorted(i for i in mine if i in store) for store in self.states]
        stacks = [
            to_arrays(store.gather(ids)) if ids else ()
            for store, ids in zip(self.states, held, strict=True)
        ]
        return Shard(
            shard_of(self.federation, mine),
            self.architecture,
            self.stage,
            list(zip(held, stacks, strict=True)),
        )

    def _replace(self, pool: ActorPool, lost: set[int]) -> set[int]:
        """New actors for the seats of lost ones, or the clients assigned to those left; the seats
        that must be told.
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
        moved = assign_seats(homeless, self._cost(), self.architecture, list(pool.actors), kept)
        self.seat = kept | moved
        return (lost - gone) | set(moved.values())

    # Work

    def _run_task(
        self, what: str, payloads: dict[int, Tree], when: Moment, *rest: Any
    ) -> Iterator[Any]:
        """What the actors make of a task for the clients of these payloads, as it comes in.

        The clients of a lost actor are asked again, as they stood before, after all others have
        answered.
        """
        pending = list(payloads)
        try:
            for _ in range(MAX_LOST_ACTORS):
                lost = yield from self._run_task_once(
                    what, {i: payloads[i] for i in pending}, when, *rest
                )
                if not lost:
                    return
                pending = [i for i in pending if self.seat[i] in lost]
                self._load_shards(self._seat_clients(), self._replace(self._seat_clients(), lost))
            raise BadInput(_format_lost(pending))
        except Exception:
            self._forget()  # some actors may have gone on
            raise

    def _run_task_once(
        self, what: str, payloads: dict[int, Tree], when: Moment, *rest: Any
    ) -> Generator[Any, None, set[int]]:
        """One try; the seats of actors that were lost."""
        pool = self._seat_clients()
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

    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        try:
            return super().exchange(trip)
        except BaseException:
            self._forget()  # some actors may have gone on
            raise

    def work(self, trip: ExchangeRequest) -> Iterator[ChunkResult]:
        payloads = {i: states.to_tensors(trip.send(i)) for i in sorted(trip.clients)}
        self._close_settings(payloads, trip)
        answered = trip.answered & set(trip.clients)
        for found in self._run_task("work", payloads, trip.when, trip.number, answered):
            for a, chunk, effort, broken, state, upload in found:
                yield ChunkResult(
                    architecture=a,
                    clients=chunk,
                    payloads=[payloads[i] for i in chunk],
                    state=from_arrays(state),
                    upload=from_arrays(upload),
                    effort=effort,
                    broken=broken,
                )

    def _close_settings(self, payloads: dict[int, Tree], trip: ExchangeRequest) -> None:
        """Choose what the settings leave open: one actor times an architecture, all then run it
        alike.
        """
        for a, settings in enumerate(self.settings):
            mine = [i for i in payloads if self.architecture[i] == a]
            if not settings.open or not mine:
                continue
            self._seat_clients()
            seats = sorted({self.seat[i] for i in mine})
            crowds = [[i for i in mine if self.seat[i] == seat] for seat in seats]
            largest = {i: payloads[i] for i in max(crowds, key=len)}
            for found in self._run_task("choose", largest, trip.when, trip.number):
                self.settings[a] = found[a]

    def evaluate(
        self,
        clients: Sequence[int],
        send: Send,
        when: Moment,
        parts: Sequence[str] = PARTS,
        final: bool = False,
    ) -> Metrics:
        place = {i: k for k, i in enumerate(clients)}
        payloads = {i: states.to_tensors(send(i)) for i in sorted(clients)}
        out: Metrics = {}
        for ids, measured in sorted(
            self._run_task("evaluate", payloads, when, tuple(parts), final),
            key=lambda found: found[0],
        ):
            for key, column in measured.items():
                out.setdefault(key, np.full(len(clients), np.nan))[[place[i] for i in ids]] = column
        return out

    def points(self, clients: Sequence[int], send: Send, when: Moment) -> Views:
        for block in split_chunks(sorted(clients), BLOCK):
            payloads = {i: states.to_tensors(send(i)) for i in block}
            for found in self._run_task("points", payloads, when):
                for a, chunk, views in found:
                    yield a, chunk, from_arrays(views)

    def predictions(
        self, clients: Sequence[int], send: Send, when: Moment, part: str
    ) -> Predictions:
        for block in split_chunks(sorted(clients), BLOCK):
            payloads = {i: states.to_tensors(send(i)) for i in block}
            found = [
                entry
                for some in self._run_task("predictions", payloads, when, part)
                for entry in some
            ]
            yield from sorted(found, key=lambda entry: entry[0])


def _format_lost(clients: list[int]) -> str:
    few = ", ".join(map(str, sorted(clients)[:5])) + (", ..." if len(clients) > 5 else "")
    return (
        f"{MAX_LOST_ACTORS} Ray actors were lost over the work of clients {few}: is there "
        "memory enough? "
        "Give fewer --actors a node"
    )


ActorCount = Annotated[int, Range(0, 1024)]  # 0: one per core


def build_ray_engine(
    setup: EngineSetup, threads: int, *, ray_address: str = "", actors: ActorCount = 0
) -> RayEngine:
    """The engine of a Ray cluster.

    ray_address: HOST:PORT of the cluster's head; empty: one is started here.
    actors: number of actors; 0: one per core.
    """
    # The server's sums must be the same when the run is resumed, so its threads are never chosen.
    torch.set_num_threads(threads or 1)
    return RayEngine(setup, ray_address, actors, threads or 1)
