"""The workloads of the engine's benchmarks, and the plain PyTorch loop that they are held against.

The plain loop is what most libraries do: one client after another, a DataLoader, `backward()`,
`SGD.step()`. Both sides train the same networks on the same rows with the same batch size. They are
timed in turns, so that whatever else the machine does hits both alike.
"""

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from peers.nets import cnn
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from coterie.core.method import Train, stages_of
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.engines.base import EngineSetup, ExchangeRequest, Moment
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from coterie.networks import registry

LAM, INNER = 15.0, 5
FEW = 4  # clients of the plain loop: it takes them one by one, so that all cost the same
COHORTS = 4  # different cohorts that take turns
OPTIONS: dict[str, dict[str, Any]] = {"pfedme": {"lam": LAM, "inner": INNER, "inner_lr": 0.01}}


class Workload(NamedTuple):
    """Clients that all hold the same number of random rows."""

    label: str
    net: str
    shape: tuple[int, ...]
    clients: int
    batch: int
    rows: int  # of each client
    options: Mapping[str, Any] = MappingProxyType({})  # of the network
    epochs: int = 1
    rate: float = 0.01
    cohort: int = 0  # clients per round; 0: all
    methods: tuple[str, ...] = ("fedavg", "ditto", "pfedme")

    @property
    def data(self) -> Federation:
        rng = np.random.default_rng(0)
        n = self.clients * (self.rows + 2)
        lists = np.arange(n).reshape(self.clients, self.rows + 2)
        parts = lists[:, : self.rows], lists[:, self.rows : -1], lists[:, -1:]
        train, validation, test = ([*part] for part in parts)
        return Federation(
            name="random",
            x=torch.as_tensor(rng.random((n, *self.shape), dtype=np.float32)),
            y=torch.as_tensor(rng.integers(0, 10, n)),
            classes=10,
            train=train,
            validation=validation,
            test=test,
            groups=np.zeros(self.clients, dtype=int),
            names=[str(i) for i in range(self.clients)],
        )

    @property
    def steps(self) -> int:
        """Client-steps per round."""
        return self.epochs * math.ceil(self.rows / self.batch) * (self.cohort or self.clients)

    def network(self) -> nn.Module:
        if self.net in OWN:
            return OWN[self.net](self.shape)
        return registry.build_network(self.net, self.shape, 10, **self.options)

    def train(self) -> Train:
        return Train(batch_size=self.batch, lr=self.rate, local_epochs=self.epochs)


class Transformer(nn.Module):
    """Two of PyTorch's encoder layers, read as the mean over the places of a sequence."""

    def __init__(self, shape: tuple[int, ...], size: int = 64, heads: int = 4) -> None:
        super().__init__()
        places, features = shape
        self.embed = nn.Linear(features, size)
        self.place = nn.Parameter(torch.zeros(places, size))
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(size, heads, 4 * size, batch_first=True) for _ in range(2))
        )
        self.head = nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x) + self.place).mean(1))


OWN: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {"cnn": cnn, "transformer": Transformer}
DIGIT, IMAGE, TEXT = (1, 28, 28), (3, 32, 32), (20, 32)
ALONE = ("fedavg",)  # of workloads of which a round takes seconds
MLR = Workload("MLR 784-10, 20 clients, B 10", "mlr", DIGIT, 20, 10, 300)
DNN = Workload("DNN 784-100-10, 20 clients, B 10", "dnn", DIGIT, 20, 10, 200)
WORKLOADS = [
    MLR,
    Workload("MLR 784-10, 100 clients, B 10", "mlr", DIGIT, 100, 10, 100),
    Workload("MLR 784-10, 1,000 clients, B 10", "mlr", DIGIT, 1000, 10, 50),
    DNN,
    Workload(
        label="CNN, CIFAR-10's shape, 50 of 1,000 clients, B 10",
        net="cnn",
        shape=IMAGE,
        clients=1000,
        batch=10,
        rows=50,
        rate=0.1,
        cohort=50,
        methods=ALONE,
    ),
    Workload(
        label="small CNN 28x28, 100 clients, 5 epochs, B 50",
        net="smallcnn",
        shape=DIGIT,
        clients=100,
        batch=50,
        rows=100,
        epochs=5,
        methods=ALONE,
    ),
    Workload(
        label="CifarNet, 20 clients, B 50",
        net="cifarnet",
        shape=IMAGE,
        clients=20,
        batch=50,
        rows=100,
        methods=ALONE,
    ),
    Workload(
        label="McMahan's CNN, 8 clients, B 50",
        net="mcmahan",
        shape=DIGIT,
        clients=8,
        batch=50,
        rows=100,
        methods=ALONE,
    ),
    Workload(
        label="narrow ResNet-18, 10 clients, B 20",
        net="kt-resnet18",
        shape=IMAGE,
        clients=10,
        batch=20,
        rows=40,
        options={"width": 0.125},
        methods=("fedavg", "ditto"),
    ),
    Workload(
        label="transformer of 2 layers, 20 clients, B 10",
        net="transformer",
        shape=TEXT,
        clients=20,
        batch=10,
        rows=50,
        methods=("fedavg", "ditto"),
    ),
    Workload(
        label="LSTM of 2 layers, 20 clients, B 10",
        net="lstm",
        shape=TEXT,
        clients=20,
        batch=10,
        rows=50,
        options={"hidden": 64},
        methods=("fedavg", "ditto"),
    ),
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
    model, data = work.network(), work._replace(clients=FEW, cohort=0).data
    loaders = [
        DataLoader(TensorDataset(data.x[rows], data.y[rows]), work.batch, shuffle=True)
        for rows in data.train
    ]
    return lambda: sum(plain_epoch(method, model, loader, work.rate) for loader in loaders)


def engine_side(
    work: Workload,
    method: str,
    settings: ExecutionSettings,
    free_threads: bool = True,
    rounds: int = 1000,
) -> tuple[Callable[[], int], LocalEngine]:
    """A whole exchange of the clients of a round: payloads, plans, steps, uploads; and its
    engine, which expects so many rounds.
    """
    model = Model(work.network, input_shape=work.shape)
    setup = EngineSetup(
        federation=work.data,
        models=[model],
        programs=[stages_of(METHODS[method](model, work.train(), **OPTIONS.get(method, {})))],
        architecture=np.zeros(work.clients, dtype=int),
        settings=[settings],
        rounds=rounds,
    )
    engine = LocalEngine(setup, free_threads=free_threads)
    w, size = model.init(stream(0, "init")), work.cohort or work.clients
    cohorts = [list(range(k * size, (k + 1) * size)) for k in range(COHORTS)]
    if not work.cohort:
        cohorts = cohorts[:1]
    numbers = iter(range(10**9))

    def exchange() -> int:
        number = next(numbers)
        asked = cohorts[number % len(cohorts)]
        trip = ExchangeRequest(
            number=0,
            when=Moment("train", number),
            clients=asked,
            send=lambda i: w,
            answered=set(asked),
            averaged=set(asked),
        )
        return engine.exchange(trip).traffic.steps

    return exchange, engine


def on_threads(side: Callable[[], int], number: int) -> Callable[[], int]:
    """The same side with so many threads of its own."""

    def run() -> int:
        torch.set_num_threads(number)
        return side()

    return run


def quicker(side: Callable[[], int]) -> Callable[[], int]:
    """The side with one thread or all of them, whatever suits it better."""
    tries = {str(k): on_threads(side, k) for k in {1, os.cpu_count() or 1}}
    times = in_turns(tries, 2)
    return tries[min(times, key=lambda name: min(times[name]))]


def in_turns(
    sides: dict[str, Callable[[], int]], turns: int, warm: int = 1
) -> dict[str, list[float]]:
    """Seconds per step of every side in every turn, after turns to warm up."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + warm):
        for name, side in sides.items():
            begin = time.perf_counter()
            steps = side()
            if turn >= warm:
                times[name].append((time.perf_counter() - begin) / steps)
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    """How many times faster one side is than another: the median over turns."""
    pairs = zip(times[slow], times[fast], strict=True)
    return statistics.median(a / b for a, b in pairs)
