"""The Ray engine at one and two actors of one thread against the local engine, in one run on one
machine.

    python benchmarks/ray_engine.py [--rounds N]

A round is one whole exchange: payloads out, local work, states and uploads back, replies stacked.
Engines take turns, round by round, so that other work on the machine falls on all of them; every
figure is the median of its rounds. The last workload has next to no work: what it takes more is
what Ray costs per round. What comes back is counted too: a state that is also the upload should
travel once.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from workloads import OPTIONS, Workload

from coterie.core.method import Tree, stages_of
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.engines.base import EngineSetup, ExchangeRequest, Moment
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.work import ChunkResult
from coterie.engines.ray.actors import ActorPool
from coterie.engines.ray.engine import RayEngine
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.loop import facts_of

WORKLOADS = [
    Workload(
        label="CifarNet, 8 clients, 2 steps",
        net="cifarnet",
        shape=(3, 32, 32),
        clients=8,
        batch=50,
        rows=100,
        methods=("fedavg", "ditto"),
    ),
    Workload(
        label="DNN 784-100-10, 40 clients, 10 steps",
        net="dnn",
        shape=(1, 28, 28),
        clients=40,
        batch=10,
        rows=100,
        methods=("ditto", "pfedme"),
    ),
    Workload(
        label="MLR 784-10, 20 clients, 1 step",
        net="mlr",
        shape=(1, 28, 28),
        clients=20,
        batch=10,
        rows=10,
        methods=("fedavg",),
    ),
]


class Counting(RayEngine):
    """The Ray engine, which counts the bytes of states and uploads that come back."""

    returned = 0

    def work(self, trip: ExchangeRequest) -> Iterator[ChunkResult]:
        for worked in super().work(trip):
            leaves = [t for t in pytree.tree_leaves((worked.state, worked.upload)) if t.numel()]
            once = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in leaves}
            self.returned += sum(once.values())
            yield worked


class Threads(NamedTuple):
    """An engine of this process with threads of its own."""

    engine: LocalEngine
    number: int

    def exchange(self, trip: ExchangeRequest) -> None:
        torch.set_num_threads(self.number)
        self.engine.exchange(trip)


def part(pool: ActorPool, seats: list[int]) -> ActorPool:
    """Some actors of a pool as a pool."""
    some = copy.copy(pool)
    some.actors = {seat: pool.actors[seat] for seat in seats}
    return some


def one(work: Workload, method: str, pools: dict[str, ActorPool], rounds: int) -> dict[str, Any]:
    """Seconds per round of every engine; the first, in which actors are given data and settings
    are chosen, does not count.
    """
    data, model = work.data, Model(work.network, input_shape=work.shape)
    program = stages_of(METHODS[method](model, work.train(), **OPTIONS.get(method, {})))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=np.zeros(work.clients, dtype=int),
        rounds=1000,
    )
    cores = os.cpu_count() or 1
    rays = {name: Counting(setup, pool=pool) for name, pool in pools.items()}
    engines: dict[str, Threads] = {"local": Threads(LocalEngine(setup), 1)}
    engines["all cores"] = Threads(LocalEngine(setup), cores)
    engines |= {name: Threads(engine, 1) for name, engine in rays.items()}
    rules, everyone = program[0].method, list(range(work.clients))
    known = facts_of(data, [model], np.zeros(work.clients, dtype=int), Schedule())
    server = rules.init(stream(0, "init"), known)
    times: dict[str, list[float]] = {name: [] for name in engines}

    def send(i: int) -> Tree:
        return rules.round[0].send(server, i, stream(0, "send", i))

    for number in range(rounds + 1):
        trip = ExchangeRequest(
            number=0,
            when=Moment("train", number),
            clients=everyone,
            send=send,
            answered=set(everyone),
            averaged=set(everyone),
        )
        for name, engine in engines.items():
            begin = time.perf_counter()
            engine.exchange(trip)
            if number:
                times[name].append(time.perf_counter() - begin)
    models = rays["2 actors"].returned / ((rounds + 1) * work.clients * 4 * model.size)
    return {
        "workload": work.label,
        "method": method,
        "ms": {name: 1e3 * statistics.median(each) for name, each in times.items()},
        "models_returned": models,
        "settings": engines["local"].engine.settings[0].text(),
    }


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """Every workload whose label has `only` in it; five rounds per repeat."""
    torch.set_num_threads(1)
    os.environ |= {"RAY_worker_niceness": "0"}  # its workers step back for others, as we do not
    begin = time.perf_counter()
    pool = ActorPool(actors=3)
    started = time.perf_counter() - begin
    pools = {"1 actor": part(pool, [0]), "2 actors": part(pool, [1, 2])}
    rows = []
    for work in WORKLOADS:
        for method in work.methods if only.lower() in work.label.lower() else ():
            row = one(work, method, pools, 5 * repeats)
            rows.append(row)
            said = ", ".join(f"{name} {ms:.1f}" for name, ms in row["ms"].items())
            print(f"{work.label}, {method}: {said} ms per round", flush=True)
    pool.close()
    return {"start": started, "rows": rows}


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown."""
    lines = [
        "| workload | method | local, 1 thread, ms | local, all cores, ms | 1 actor | 2 actors "
        "| local / 2 actors | models back per client |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        ms = row["ms"]
        cells = [f"{ms[name]:.0f}" for name in ("local", "all cores", "1 actor", "2 actors")]
        lines.append(
            f"| {row['workload']} | {row['method']} | {' | '.join(cells)} "
            f"| {ms['local'] / ms['2 actors']:.2f}x | {row['models_returned']:.1f} |"
        )
    last = found["rows"][-1]["ms"]
    more = [last[name] - last["local"] for name in ("1 actor", "2 actors")]
    return [
        *lines,
        "",
        f"Actors have one thread. On top of the work a round costs {more[0]:.0f} ms with one actor "
        f"and {more[1]:.0f} ms with two (the last row); Ray and three actors started in "
        f"{found['start']:.0f} s. What clients have to send back, states and uploads, is one model "
        "with FedAvg and two with Ditto and pFedMe: more means that something travels twice.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    print("\n".join(page(measure(max(1, parser.parse_args().rounds // 5)))))


if __name__ == "__main__":
    main()
