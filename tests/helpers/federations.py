"""What tests share: tiny federations, a tiny network, and one way to play a method."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.core.method import Method, Train, stages_of
from coterie.core.model import Model
from coterie.data.dataset import Public
from coterie.data.federation import Federation
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.config import Experiment
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.assembly import Assembly, check_method, open_loop
from coterie.running.loop import Loop

TRAIN = Train(batch_size=4, lr=0.1, local_epochs=1)
SEQUENTIAL = ExecutionSettings("sequential", 1, "no")
STACKED = ExecutionSettings("vectorized", 16, "no")

# What a method needs beyond its defaults to run on the tiny federation.
OPTIONS: dict[str, dict[str, Any]] = {
    "ktpfl": {"draw": 20, "public_batch_size": 8},
    "sim-pfl": {"draw": 20, "public_batch_size": 8},
    "topk-pfl": {"draw": 20, "public_batch_size": 8, "k": 3},
    "fedmd": {"draw": 20, "public_batch_size": 8},
    "pfml": {"lam": 2.0},
    "persfl": {"distil_epochs": 3},
    "persfl-gd": {"distil_epochs": 3},
    "feddf": {"draw": 20, "public_batch_size": 8, "distil_steps": 30},
    "feddbe": {"kappa": 1.0},  # 50 diverges on rows of six numbers
    "fedtgp": {"server_epochs": 5},
    "feddyn": {"alpha": 1.0},
    "knnper": {"memory": 12, "neighbours": 3},
    "pfeddf": {"draw": 20, "public_batch_size": 8, "distil_steps": 30, "tune_epochs": 3},
}


def tiny(
    clients: int = 5, seed: int = 0, public: int = 24, validation: int = 4, groups: int = 2
) -> Federation:
    """Unequal clients with three classes of six features; two groups whose labels are turned
    round.
    """
    rng = np.random.default_rng(seed)
    sizes = [5 + 3 * i for i in range(clients)]
    x, y, parts = [], [], {"train": [], "validation": [], "test": []}
    start = 0
    centres = rng.normal(size=(3, 6)) * 2
    for i, n in enumerate(sizes):
        for part, count in (("train", n), ("validation", validation), ("test", 6)):
            labels = rng.integers(0, 3, count)
            x.append(centres[labels] + rng.normal(size=(count, 6)))
            y.append((labels + i % groups) % 3)
            parts[part].append(np.arange(start, start + count))
            start += count
    common = torch.as_tensor(
        centres[rng.integers(0, 3, max(public, 1))] + rng.normal(size=(max(public, 1), 6))
    )
    dtype = torch.get_default_dtype()
    return Federation(
        name="tiny",
        x=torch.as_tensor(np.concatenate(x), dtype=dtype),
        y=torch.as_tensor(np.concatenate(y)),
        classes=3,
        **parts,
        groups=np.arange(clients) % groups,
        names=[str(i) for i in range(clients)],
        public=Public("tiny", common.to(dtype), None, "0") if public else None,
    )


def tiny_images(**more: Any) -> Federation:
    """The same rows as images of one channel, 2 x 3."""
    flat = tiny(**more)
    public = flat.public and flat.public._replace(x=flat.public.x.reshape(-1, 1, 2, 3))
    return flat._replace(x=flat.x.reshape(-1, 1, 2, 3), public=public)


def given(
    clients: list[tuple[torch.Tensor, torch.Tensor]],
    classes: int = 3,
    groups: list[int] | None = None,
) -> Federation:
    """A federation whose clients hold these rows and labels; they are its test rows too."""
    ends = np.cumsum([len(y) for _, y in clients])
    rows = [np.arange(end - len(y), end) for end, (_, y) in zip(ends, clients, strict=True)]
    return Federation(
        name="given",
        x=torch.cat([x for x, _ in clients]),
        y=torch.cat([y for _, y in clients]),
        classes=classes,
        train=rows,
        validation=[np.zeros(0, dtype=np.int64) for _ in clients],
        test=rows,
        groups=np.array(groups or [0] * len(clients)),
        names=[str(i) for i in range(len(clients))],
    )


def tiny_model(
    hidden: int = 5, norm: bool = False, dropout: float = 0.0, image: bool = False
) -> Model:
    """Six features, or an image of so many pixels, and three classes."""

    def make() -> nn.Module:
        flat = [nn.Flatten()] if image else []
        middle = [nn.BatchNorm1d(hidden)] if norm else []
        drop = [nn.Dropout(dropout)] if dropout else []
        body = [nn.Linear(6, hidden), *middle, nn.ReLU(), *drop]
        return nn.Sequential(*flat, *body, nn.Linear(hidden, 3))

    return Model(make, name=f"tiny-{hidden}")


# The network of a method that needs more than the plain tiny one.
MODELS: dict[str, Callable[[], Model]] = {"fedbn": lambda: tiny_model(norm=True)}


def play(
    build: str | Callable[..., Any] | Method,
    federation: Federation | None = None,
    models: list[Model] | None = None,
    rounds: int = 2,
    settings: ExecutionSettings = STACKED,
    train: Train = TRAIN,
    seed: int = 0,
    until: int | None = None,
    options: dict[str, Any] | None = None,
    strict: bool | None = None,
    **schedule: Any,
) -> Loop:
    """Run a method on a (tiny) federation and return the loop as it stands at the end."""
    strict = settings.compile == "yes" if strict is None else strict
    federation = federation or tiny()
    models = models or [MODELS.get(build, tiny_model)() if isinstance(build, str) else tiny_model()]
    architecture = np.arange(federation.clients) % len(models)
    if isinstance(build, str):
        options = OPTIONS.get(build, {}) | (options or {})
        build = METHODS[build]
    programs = [
        stages_of(build(model, train, **(options or {})) if callable(build) else build)
        for model in models
    ]
    plan = Schedule(rounds=rounds, eval_every=1000)._replace(**schedule)
    config = Experiment(method="method", seed=seed, schedule=plan, engine={"name": "local"})
    assembly = Assembly(
        experiment=config,
        federation=federation,
        models=models,
        programs=programs,
        architecture=architecture,
    )
    check_method(assembly)
    loop = open_loop(
        assembly,
        lambda setup: LocalEngine(setup._replace(settings=[settings] * len(models), strict=strict)),
    )
    loop.go(until=until)
    return loop


def watched(name: str, **more: Any) -> tuple[Loop, list[tuple[dict[int, Any], Any, Any]]]:
    """Play one round; the loop, and for each exchange what was sent to each client, the replies and
    the traffic.
    """
    loop = play(name, until=0, **more)
    trips, original = [], loop.engine.exchange

    def exchange(trip):
        sent = {i: trip.send(i) for i in trip.clients}
        outcome = original(trip)
        trips.append((sent, outcome.replies, outcome.traffic))
        return outcome

    loop.engine.exchange = exchange
    loop.go(until=1)
    return loop, trips


def personal(loop: Loop, view: str = "personal") -> dict[int, torch.Tensor]:
    """Every client's own model, or another view of it, as one flat vector (parameters, then
    buffers)."""
    out = {}
    for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        point = views[view]
        rows = [
            t.reshape(len(chunk), -1) for t in (*point.params.values(), *point.buffers.values())
        ]
        for k, i in enumerate(chunk):
            out[i] = torch.cat([r[k].to(torch.get_default_dtype()) for r in rows])
    return out


def assert_same(
    a: dict[int, torch.Tensor], b: dict[int, torch.Tensor], tolerance: float = 1e-9
) -> None:
    """Two sets of personal models agree."""
    assert a.keys() == b.keys()
    for i in a:
        torch.testing.assert_close(
            a[i], b[i], rtol=tolerance, atol=tolerance, msg=lambda m, i=i: f"client {i}: {m}"
        )


@contextmanager
def float64():
    """Everything in double precision: for laws held to 1e-9."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
