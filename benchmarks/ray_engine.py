"""Clients a second of the Ray engine at one and two actors against the local engine, in one run on
one machine.

A round is one whole exchange: payloads out, local work, states and uploads back, replies stacked.
Engines take turns, round by round, so that other work on the machine falls on all of them; every
figure is the best of its rounds. The last workload has next to no work: what it takes is what Ray
costs a round.
"""

import copy
import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from coterie.core.method import Train, Tree, stages
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.engines.base import Moment, Setup, Trip
from coterie.engines.local.engine import LocalEngine
from coterie.engines.ray.actors import Pool
from coterie.engines.ray.engine import RayEngine
from coterie.engines.settings import Settings
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.networks import nets
from coterie.running.loop import facts

ROUNDS = 25
WORKLOADS = [  # name, method, network, input, clients, batch, rows per client, path
    (
        "DNN 784-100-10, 40 clients, 10 steps",
        "ditto",
        "dnn",
        (1, 28, 28),
        40,
        10,
        100,
        "vectorized",
    ),
    ("CifarNet, 8 clients, 2 steps", "ditto", "cifarnet", (3, 32, 32), 8, 50, 100, "sequential"),
    ("MLR 784-10, 20 clients, 1 step", "fedavg", "mlr", (1, 28, 28), 20, 10, 10, "vectorized"),
]


def federation(shape: tuple[int, ...], clients: int, rows: int) -> Federation:
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.random((clients * rows, *shape)), dtype=torch.float32)
    lists = [*np.arange(clients * rows).reshape(clients, rows)]
    none = [np.zeros(0, dtype=np.int64)] * clients
    y = torch.as_tensor(rng.integers(0, 10, clients * rows))
    return Federation(
        "random",
        x,
        y,
        10,
        lists,
        none,
        none,
        np.zeros(clients, dtype=int),
        [str(i) for i in range(clients)],
    )


def part(pool: Pool, seats: list[int]) -> Pool:
    """Some actors of a pool as a pool."""
    some = copy.copy(pool)
    some.actors = {seat: pool.actors[seat] for seat in seats}
    return some


def seconds(engines: dict[str, LocalEngine], data: Federation, model: Model) -> dict[str, float]:
    """Seconds a round, the best of several, the engines in turn; the first, in which actors are
    given data, does not count.
    """
    everyone = list(range(data.clients))
    known = facts(data, [model], np.zeros(data.clients, dtype=int), Schedule())
    rules = engines["local"].method(0)
    server = rules.init(stream(0, "init"), known)
    best = dict.fromkeys(engines, float("inf"))

    def send(i: int) -> Tree:
        return rules.round[0].send(server, i, stream(0, "send", i))

    for number in range(ROUNDS + 1):
        trip = Trip(
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
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def main() -> None:
    torch.set_num_threads(1)
    begin = time.perf_counter()
    pool = Pool(actors=3)
    print(f"Ray and three actors started in {time.perf_counter() - begin:.1f} s", flush=True)
    one, two = part(pool, [0]), part(pool, [1, 2])
    grid = Table(
        "workload",
        "method",
        "local, clients/s",
        "1 actor",
        "2 actors",
        "1 actor / local",
        "2 actors / local",
    )
    for label, method, net, shape, clients, batch, rows, path in WORKLOADS:
        data = federation(shape, clients, rows)
        model = Model(lambda n=net, s=shape: nets.build(n, s, 10), input_shape=shape)
        program = stages(METHODS[method](model, Train(batch=batch, rate=0.01)))
        setup = Setup(
            federation=data,
            models=[model],
            programs=[program],
            architecture=np.zeros(clients, dtype=int),
            settings=[Settings(path, 64, "no")],
        )
        engines = {
            "local": LocalEngine(setup),
            "one": RayEngine(setup, pool=one),
            "two": RayEngine(setup, pool=two),
        }
        best = seconds(engines, data, model)
        rate = {name: clients / s for name, s in best.items()}
        against = [f"{rate[name] / rate['local']:.2f}" for name in ("one", "two")]
        grid.add_row(
            label,
            method,
            *(f"{rate[name]:,.{0 if rate[name] > 99 else 1}f}" for name in engines),
            *against,
        )
        print(
            f"{label}: {', '.join(f'{name} {1e3 * s:.1f}' for name, s in best.items())} ms a round",
            flush=True,
        )
        last = best
    pool.close()
    Console(width=150).print(grid)
    costs = [f"{1e3 * (last[name] - last['local']):.0f} ms" for name in ("one", "two")]
    print(f"overhead a round: {costs[0]} at one actor, {costs[1]} at two")
    print(f"torch {torch.__version__}, one thread everywhere")


if __name__ == "__main__":
    main()
