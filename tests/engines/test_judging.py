"""Evaluation in machine code says what torch says."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.method import Train, stages_of
from coterie.core.model import Model
from coterie.core.point import stack
from coterie.data.federation import Federation
from coterie.engines.base import EngineSetup
from coterie.engines.local import autotune, engine
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.native.compiler import find_compiler
from coterie.engines.local.native.judging import NativeJudge
from coterie.engines.local.threads import use_threads
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.networks.registry import build_network
from coterie.running.loop import Loop

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C compiler here")
SIZES = [
    37,
    0,
    1,
    150,
    8,
]  # rows of the clients in each part: blocks that are full and that are not


def federation(shape):
    """Clients of unequal sizes whose rows lie in any order."""
    rng = np.random.default_rng(0)
    n = 3 * sum(SIZES)
    order = np.split(rng.permutation(n), np.cumsum(SIZES * 3)[:-1])
    return Federation(
        name="rows",
        x=torch.as_tensor(rng.normal(size=(n, *shape)), dtype=torch.float32),
        y=torch.as_tensor(rng.integers(0, 3, n)),
        classes=3,
        train=order[:5],
        validation=order[5:10],
        test=order[10:],
        groups=np.zeros(5, dtype=int),
        names=[str(i) for i in range(5)],
    )


def measured(network, shape, method, threads, evaluations, task="classes"):
    """What a short run in machine code measures, and the steppers that did."""
    data = federation(shape)
    outputs = 1 if task == "regression" else 3
    data = data._replace(y=data.y.float()) if task == "regression" else data
    model = Model(lambda: build_network(network, shape, outputs), task, input_shape=shape)
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[stages_of(METHODS[method](model, Train(batch_size=4, lr=0.1, local_steps=2)))],
        architecture=np.zeros(5, dtype=int),
        settings=[ExecutionSettings("vectorized", 5, "yes")],
        evaluations=evaluations,
    )
    with use_threads(threads), torch.no_grad():
        loop = Loop(LocalEngine(setup), data, Schedule(rounds=2, eval_every=1), 0)
        loop.go()
        return loop.evaluate(final=True), [*loop.engine._steppers.values()]


@pytest.mark.parametrize(
    ("network", "shape", "method", "threads", "task"),
    [
        ("mlr", (60,), "fedavg", 1, "classes"),
        ("mlr", (60,), "ditto", 2, "classes"),
        ("dnn", (20,), "ditto", 1, "regression"),
        ("smallcnn", (1, 12, 12), "fedavg", 2, "classes"),
        ("smallcnn", (1, 12, 12), "ditto", 1, "classes"),
    ],
)
def test_machine_code_measures_what_torch_measures(
    monkeypatch, network, shape, method, threads, task
):
    monkeypatch.setattr(autotune, "MIN_ROWS_TO_COMPILE", 1)
    monkeypatch.setattr(autotune, "MIN_ROWS_TO_COMPILE_CONV", 1)
    found, steppers = measured(network, shape, method, threads, 3, task)
    usual, plain = measured(network, shape, method, threads, 0, task)
    assert any(code is not None for one in steppers for code in one._judges.values())
    assert not any(one._judges for one in plain)
    assert found.keys() == usual.keys()
    for key, values in usual.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5, atol=1e-6, err_msg=str(key))
    assert np.isnan(found["personal", "test", "loss"][1])  # of the client without rows


def test_a_row_is_judged_once_though_the_last_evaluation_has_more_scores(monkeypatch):
    monkeypatch.setattr(autotune, "MIN_ROWS_TO_COMPILE", 1)
    rows = []

    def run(judge, points, counts, *more, usual=NativeJudge.run):
        rows.append(counts.sum())
        return usual(judge, points, counts, *more)

    monkeypatch.setattr(NativeJudge, "run", run)
    found, _ = measured("mlr", (60,), "fedavg", 1, 3)
    assert len(found["personal", "test", "f1"]) == 5
    assert len(rows) == 3 * 3  # parts with rows, of the rounds and of the last evaluation
    assert set(rows) == {sum(SIZES)}


@pytest.mark.parametrize(("method", "chunks"), [("fedavg", 1), ("ditto", 3)])
def test_clients_with_one_model_are_evaluated_at_once(monkeypatch, method, chunks):
    data = federation((60,))
    model = Model(lambda: build_network("mlr", (60,), 3), input_shape=(60,))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[stages_of(METHODS[method](model, Train(batch_size=4, lr=0.1, local_steps=2)))],
        architecture=np.zeros(5, dtype=int),
        settings=[ExecutionSettings("vectorized", 5, "no")],
    )
    monkeypatch.setattr(engine, "EVAL_BYTES", 2 * 4 * model.size)
    loop = Loop(LocalEngine(setup), data, Schedule(rounds=1, eval_every=1), 0)
    loop.go()
    assert len([*loop.engine.points(*loop.ask())]) == chunks


def test_few_rows_are_not_worth_compiling():
    _, steppers = measured("mlr", (60,), "fedavg", 1, 3)
    assert not any(one._judges for one in steppers)


def test_a_network_without_machine_code_is_measured_by_torch():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            z = self.layer(x)
            return z if z.sum() > 1e9 else 2 * z

    data, model = federation((4,)), Model(Branching, input_shape=(4,))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[stages_of(METHODS["fedavg"](model, Train()))],
        architecture=np.zeros(5, dtype=int),
    )
    feed, stepper = (
        LocalEngine(setup).feed,
        LocalEngine(setup)._stepper(ExecutionSettings("vectorized", 5, "yes")),
    )
    assert stepper.judge_of(model, model.start(0), feed, 8) is None
    assert stepper.judge_of(model, stack([model.start(0)]), feed, 8) is None
