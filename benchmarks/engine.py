"""Client-steps per second of the local engine against a plain PyTorch loop, in one run on one
machine.

The plain loop is what most libraries do: one client after another, a DataLoader, `backward()`,
`SGD.step()`. Both sides train the same networks on the same rows with the same batch size; the
engine chooses its path as it does for a long run, and what it compiles is compiled before the clock
starts. Every figure is the best of several rounds.
"""

import copy
import time

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from coterie.core.method import Train, stages
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.engines.base import Moment, Setup, Trip
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import Settings
from coterie.methods.registry import METHODS
from coterie.networks import nets

LAM, INNER = 15.0, 5
WORKLOADS = [  # name, network, input, clients, batch, rows per client
    ("MLR 784-10, 100 clients, B 10", "mlr", (1, 28, 28), 100, 10, 300),
    ("DNN 784-100-10, 20 clients, B 10", "dnn", (1, 28, 28), 20, 10, 300),
    ("DNN 784-100-10, 20 clients, B 32", "dnn", (1, 28, 28), 20, 32, 960),
    ("CifarNet, 20 clients, B 50", "cifarnet", (3, 32, 32), 20, 50, 500),
]


def federation(shape: tuple[int, ...], clients: int, rows: int) -> Federation:
    rng = np.random.default_rng(0)
    n = clients * (rows + 2)
    x = torch.as_tensor(rng.random((n, *shape)), dtype=torch.float32)
    y = torch.as_tensor(rng.integers(0, 10, n))
    lists = np.arange(n).reshape(clients, rows + 2)
    parts = [lists[:, :rows], lists[:, rows : rows + 1], lists[:, rows + 1 :]]
    return Federation(
        "random",
        x,
        y,
        10,
        *([*p] for p in parts),
        np.zeros(clients, dtype=int),
        [str(i) for i in range(clients)],
    )


def plain(method: str, model: nn.Module, loader: DataLoader, rate: float) -> int:
    """One client's local epoch the usual way; the number of steps."""
    w = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    steps = 0
    if method == "ditto":
        personal = copy.deepcopy(model)
        own = torch.optim.SGD(personal.parameters(), lr=rate)
    for x, y in loader:
        steps += 1
        if method == "pfedme":
            for _ in range(INNER):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                with torch.no_grad():
                    for p, a in zip(model.parameters(), w, strict=True):
                        p.grad.add_(p - a, alpha=LAM)
                optimizer.step()
            with torch.no_grad():
                for p, a in zip(model.parameters(), w, strict=True):
                    a.sub_(a - p, alpha=rate * LAM)
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if method == "ditto":
            own.zero_grad()
            F.cross_entropy(personal(x), y).backward()
            with torch.no_grad():
                for p, a in zip(personal.parameters(), w, strict=True):
                    p.grad.add_(p - a)
            own.step()
    return steps


def plain_rate(
    method: str, name: str, data: Federation, batch: int, shape: tuple[int, ...]
) -> float:
    """Steps a second of the plain loop, the best of six passes over a few clients."""
    model = nets.build(name, shape, 10)
    few = range(min(5, data.clients))
    loaders = [
        DataLoader(TensorDataset(data.x[data.train[i]], data.y[data.train[i]]), batch, shuffle=True)
        for i in few
    ]
    plain(method, model, loaders[0], 0.01)
    best = 0.0
    for _ in range(6):
        begin = time.perf_counter()
        steps = sum(plain(method, model, loader, 0.01) for loader in loaders)
        best = max(best, steps / (time.perf_counter() - begin))
    return best


def engine_rate(
    method: str, name: str, data: Federation, batch: int, shape: tuple[int, ...]
) -> tuple[float, Settings, int]:
    """Client-steps per second of whole exchanges (payloads, plans, steps, uploads), and the
    settings chosen.
    """
    model = Model(lambda: nets.build(name, shape, 10), input_shape=shape)
    train = Train(batch=batch, rate=0.01)
    options = {"pfedme": {"lam": LAM, "inner": INNER, "inner_rate": 0.01}}.get(method, {})
    program = stages(METHODS[method](model, train, **options))
    dealt = np.zeros(data.clients, dtype=int)
    setup = Setup(
        federation=data, models=[model], programs=[program], architecture=dealt, rounds=10_000
    )
    engine = LocalEngine(setup, free_threads=True)
    everyone = list(range(data.clients))
    w = model.init(stream(0, "init"))
    best = 0.0
    for number in range(7):
        begin = time.perf_counter()
        trip = Trip(
            number=0,
            when=Moment("train", number),
            clients=everyone,
            send=lambda i: w,
            answered=set(everyone),
            averaged=set(everyone),
        )
        _, traffic, _ = engine.exchange(trip)
        if number:
            best = max(best, traffic.steps / (time.perf_counter() - begin))
    return best, engine.settings[0], torch.get_num_threads()


def main() -> None:
    grid = Table(
        "workload",
        "method",
        "plain loop, us a step",
        "engine, us a client-step",
        "ratio",
        "engine's choice",
    )
    threads = torch.get_num_threads()
    for label, name, shape, clients, batch, rows in WORKLOADS:
        data = federation(shape, clients, rows)
        for method in ("fedavg", "ditto", "pfedme"):
            torch.set_num_threads(threads)
            slow = plain_rate(method, name, data, batch, shape)
            fast, choice, used = engine_rate(method, name, data, batch, shape)
            chosen = (
                f"{choice.path} {choice.width}, compile {choice.compile}, {used} "
                f"thread{'s' * (used > 1)}"
            )
            grid.add_row(
                label,
                method,
                f"{1e6 / slow:,.0f}",
                f"{1e6 / fast:,.0f}",
                f"{fast / slow:.1f}",
                chosen,
            )
            print(f"{label}, {method}: {fast / slow:.1f}x ({chosen})", flush=True)
    Console(width=150).print(grid)
    print(f"torch {torch.__version__}, {threads} threads for the plain loop")


if __name__ == "__main__":
    main()
