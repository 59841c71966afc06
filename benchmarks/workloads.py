"""The workloads of the engine's benchmarks, and the plain PyTorch loop that they are held against.

The plain loop is what most libraries do: one client after another, a DataLoader, `backward()`,
`SGD.step()`. Both sides train the same networks on the same rows with the same batch size. They are
timed in turns, so that whatever else the machine does hits both alike.
"""

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
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
FEW = 4  # clients of the plain loop: it takes them one by one, so that all cost the same


class Workload(NamedTuple):
    """Clients that all hold the same number of random rows."""

    label: str
    net: str
    shape: tuple[int, ...]
    clients: int
    batch: int
    rows: int  # of each client

    @property
    def data(self) -> Federation:
        rng = np.random.default_rng(0)
        n = self.clients * (self.rows + 2)
        lists = np.arange(n).reshape(self.clients, self.rows + 2)
        parts = lists[:, : self.rows], lists[:, self.rows : -1], lists[:, -1:]
        train, validation, test = ([*part] for part in parts)
        return Federation(
            name="random",
            x=torch.as_tensor(rng.random((n, *self.shape)), dtype=torch.float32),
            y=torch.as_tensor(rng.integers(0, 10, n)),
            classes=10,
            train=train,
            validation=validation,
            test=test,
            groups=np.zeros(self.clients, dtype=int),
            names=[str(i) for i in range(self.clients)],
        )

    def network(self) -> nn.Module:
        return nets.build(self.net, self.shape, 10)


MLR = Workload("MLR 784-10, 20 clients, B 10", "mlr", (1, 28, 28), 20, 10, 300)
WORKLOADS = [
    MLR,
    Workload("MLR 784-10, 100 clients, B 10", "mlr", (1, 28, 28), 100, 10, 100),
    Workload("DNN 784-100-10, 20 clients, B 10", "dnn", (1, 28, 28), 20, 10, 200),
    Workload("DNN 784-100-10, 20 clients, B 32", "dnn", (1, 28, 28), 20, 32, 640),
    Workload("CifarNet, 20 clients, B 50", "cifarnet", (3, 32, 32), 20, 50, 100),
]


def plain_epoch(method: str, model: nn.Module, loader: DataLoader, rate: float) -> int:
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


def plain_side(work: Workload, method: str) -> Callable[[], int]:
    """A pass of the plain loop over a few clients; it returns the number of steps."""
    model, data = work.network(), work.data
    loaders = [
        DataLoader(TensorDataset(data.x[rows], data.y[rows]), work.batch, shuffle=True)
        for rows in data.train[:FEW]
    ]
    return lambda: sum(plain_epoch(method, model, loader, 0.01) for loader in loaders)


def engine_side(
    work: Workload, method: str, settings: Settings, free_threads: bool = True
) -> tuple[Callable[[], int], LocalEngine]:
    """A whole exchange of all clients: payloads, plans, steps, uploads; and its engine."""
    model = Model(work.network, input_shape=work.shape)
    options: dict[str, Any] = {
        "pfedme": {"lam": LAM, "inner": INNER, "inner_rate": 0.01},
    }.get(method, {})
    setup = Setup(
        federation=work.data,
        models=[model],
        programs=[stages(METHODS[method](model, Train(batch=work.batch, rate=0.01), **options))],
        architecture=np.zeros(work.clients, dtype=int),
        settings=[settings],
        rounds=1000,
    )
    engine = LocalEngine(setup, free_threads=free_threads)
    everyone, w = list(range(work.clients)), model.init(stream(0, "init"))
    rounds = iter(range(10**9))

    def exchange() -> int:
        trip = Trip(
            number=0,
            when=Moment("train", next(rounds)),
            clients=everyone,
            send=lambda i: w,
            answered=set(everyone),
            averaged=set(everyone),
        )
        return engine.exchange(trip).traffic.steps

    return exchange, engine


def products_side(work: Workload) -> Callable[[], int] | None:
    """The matrix products of one step of every client and nothing else: no step of stacked dense
    layers can be faster. None for other networks.
    """
    sizes = [tuple(layer.weight.shape) for layer in work.network().modules() if _dense(layer)]
    if not sizes or any(isinstance(m, nn.Conv2d) for m in work.network().modules()):
        return None
    m, b = work.clients, work.batch
    layers = [(torch.rand(m, b, i), torch.rand(m, o, i), torch.rand(m, b, o)) for o, i in sizes]

    def products() -> int:
        for k, (x, w, slope) in enumerate(layers):
            torch.bmm(x, w.transpose(1, 2))
            w.baddbmm_(slope.transpose(1, 2), x, alpha=-1e-9)
            if k:
                torch.bmm(slope, w)
        return m

    return products


def _dense(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear)


def in_turns(sides: dict[str, Callable[[], int]], turns: int) -> dict[str, list[float]]:
    """Seconds per step of every side in every turn, after one turn to warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, side in sides.items():
            begin = time.perf_counter()
            steps = side()
            if turn:
                times[name].append((time.perf_counter() - begin) / steps)
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    """How many times faster one side is than another: the median over turns."""
    pairs = zip(times[slow], times[fast], strict=True)
    return statistics.median(a / b for a, b in pairs)
