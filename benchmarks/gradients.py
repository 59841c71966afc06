"""What a gradient costs with each method, relative to FedAvg's on the same engine.

The methods play their rounds in turns with FedAvg. Only exchanges are timed: payloads, local work,
uploads. A case names the stage and the exchange that count, and FedAvg then takes batches of the
same size.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from workloads import DNN, OPTIONS, Workload

from coterie.core.method import stages_of
from coterie.core.model import Model
from coterie.data.dataset import Public
from coterie.data.federation import Federation
from coterie.engines.base import EngineSetup, ExchangeRequest, ExchangeResult
from coterie.engines.local.engine import LocalEngine
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.loop import Loop

PUBLIC = 300  # rows
SMALL = Workload("small CNN", "smallcnn", (1, 28, 28), 10, 10, 100)


class Case(NamedTuple):
    """A method, and what of it is held against FedAvg."""

    title: str
    method: str
    options: Mapping[str, Any] = MappingProxyType({})
    stage: str = ""  # "": every one
    exchange: int = -1  # of the round; -1: every one
    batch: int = 0  # rows per batch; 0: the workload's


CASES = [
    Case("Ditto", "ditto"),
    Case("pFedMe", "pfedme", OPTIONS["pfedme"]),
    Case("PFML", "pfml"),
    Case("APFL", "apfl"),
    Case("PersFL's grid of 15", "persfl", {"distil_epochs": 4}, stage="distil"),
    Case("KT-pFL's distillation", "ktpfl", {"public_batch_size": 10}, exchange=1),
    Case("UCFL's gradients", "ucfl", stage="similarity", batch=256),
    Case("UCFL's training", "ucfl", stage="train"),
    Case("Self-FL", "selffl", {"l_base": 0}),
]


class Took(NamedTuple):
    """One exchange."""

    stage: str
    number: int
    seconds: float
    gradients: int


class Watched(LocalEngine):
    """The local engine, which notes what every exchange takes."""

    def __init__(self, setup: EngineSetup):
        self.took: list[Took] = []
        super().__init__(setup, free_threads=False)

    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        begin = time.perf_counter()
        out = super().exchange(trip)
        seconds = time.perf_counter() - begin
        stage = self.programs[0][self.stage].name
        self.took.append(Took(stage, trip.number, seconds, out.traffic.gradients))
        return out


def federation(work: Workload, rows: int) -> Federation:
    """The workload's data with validation rows, so many training rows and a public set."""
    data = work._replace(rows=rows).data
    rng = np.random.default_rng(1)
    x = torch.as_tensor(rng.random((PUBLIC, *work.shape), dtype=np.float32))
    return data._replace(public=Public("random", x, None, ""))


def player(work: Workload, case: Case, rounds: int) -> Callable[[], float]:
    """Plays the whole of a method's run, again and again on one engine; seconds per gradient of
    what counts of it.
    """
    work = work._replace(batch=case.batch or work.batch)
    data = federation(work, max(work.rows, 2 * work.batch))
    model = Model(work.network, input_shape=work.shape)
    program = stages_of(METHODS[case.method](model, work.train(), **case.options))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=np.zeros(work.clients, dtype=int),
        rounds=1000,
    )
    engine = Watched(setup)
    fresh = engine.dump()
    schedule = Schedule(rounds=rounds, eval_every=rounds, parts=("test",))

    def play() -> float:
        engine.restore(fresh, 0)
        engine.took.clear()
        Loop(engine, data, schedule, 0).go()
        return cost(engine.took, case)

    play()  # what is prepared once is no part of a gradient
    return play


def cost(took: list[Took], case: Case) -> float:
    """Seconds per gradient of the exchanges that count."""
    counted = [
        each
        for each in took
        if each.gradients and case.stage in ("", each.stage) and case.exchange in (-1, each.number)
    ]
    return sum(each.seconds for each in counted) / sum(each.gradients for each in counted)


def one(work: Workload, case: Case, repeats: int, rounds: int) -> dict[str, Any]:
    """A method in turns with FedAvg."""
    torch.set_num_threads(1)
    mine = player(work, case, rounds)
    base = player(work, Case("FedAvg", "fedavg", batch=case.batch), rounds)
    pairs = [(mine(), base()) for _ in range(repeats)]
    return {
        "workload": work.label,
        "method": case.title,
        "us": 1e6 * statistics.median(a for a, _ in pairs),
        "fedavg_us": 1e6 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def measure(repeats: int, only: str = "") -> dict[str, Any]:
    """Every case whose title has `only` in it, on a dense network and a convolutional one."""
    rows = []
    for work, rounds in ((DNN, 3), (SMALL, 2)):
        for case in CASES if only.lower() in work.label.lower() else []:
            row = one(work, case, repeats, rounds)
            rows.append(row)
            print(f"{work.label}, {case.title}: {row['ratio']:.2f}x a FedAvg gradient", flush=True)
    return {"rows": rows}


def page(found: dict[str, Any]) -> list[str]:
    """The figures as Markdown: a row per method, the workloads beside each other."""
    labels = list(dict.fromkeys(row["workload"] for row in found["rows"]))
    known = {(row["method"], row["workload"]): row for row in found["rows"]}
    heads = [f"{label}: µs per gradient | of FedAvg's" for label in labels]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + 2 * len(labels)) + "|"]
    for method in dict.fromkeys(row["method"] for row in found["rows"]):
        cells = []
        for label in labels:
            row = known[method, label]
            cells += [f"{row['us']:.0f}", f"{row['ratio']:.2f}x"]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return [*lines, "", "One thread; FedAvg takes turns with each method."]
