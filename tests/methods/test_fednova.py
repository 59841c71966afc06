"""Laws of FedNova: FedAvg where steps are equal; else the mean gradient, whoever took how many
steps; the rounds of FedAvg settle elsewhere.
"""

import pytest
import torch
from torch import nn

from coterie.core.method import Train
from coterie.core.model import Model
from helpers.federations import (
    TRAIN,
    assert_same,
    float64,
    given,
    personal,
    play,
    tiny_model,
)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.5},
        {"momentum": 0.5, "nesterov": True},
        {"lr_schedule": "cosine:rounds=3:end=0.1:per=step", "momentum": 0.5},
    ],
)
def test_with_equally_many_steps_it_is_fedavg(settings):
    with float64():
        train = TRAIN._replace(local_steps=4, **settings)
        model = [tiny_model(norm=True)]
        assert_same(
            personal(play("fednova", models=model, rounds=3, train=train)),
            personal(play("fedavg", models=model, rounds=3, train=train)),
        )


def lines(slopes, rows):
    """Clients whose gradient hardly changes: f_i(w) = (w x - 50)^2 / 2 at steps of 1e-9."""
    clients = [
        (torch.full((n, 1), float(a)), torch.full((n,), 50.0))
        for a, n in zip(slopes, rows, strict=True)
    ]
    return given(clients, classes=0), Model(lambda: nn.Linear(1, 1, bias=False), task="squared")


@pytest.mark.parametrize("weighting", ["size", "equal"])
@pytest.mark.parametrize(
    ("settings", "reach"),
    [
        # the sums over steps of (1 - m^t) / (1 - m), t from 1 to 2, 3 and 7
        ({}, [2.0, 3.0, 7.0]),
        ({"momentum": 0.5}, [2.5, 4.25, 12.015625]),
        # Nesterov moves by g + m u: 1 + m (1 - m^t) / (1 - m)
        ({"momentum": 0.5, "nesterov": True}, [3.25, 5.125, 13.0078125]),
    ],
)
def test_the_server_follows_the_mean_gradient(weighting, settings, reach):
    """x - x' = lr (sum_i p_i |a_i|) sum_i p_i g_i, with batches of one row and one epoch."""
    with float64():
        slopes, rows = torch.tensor([1.0, -2.0, 4.0]), torch.tensor([2.0, 3.0, 7.0])
        federation, model = lines(slopes, rows.int().tolist())
        train = Train(batch_size=1, lr=1e-9, weighting=weighting, **settings)
        loop = play("fednova", federation, [model], 1, train=train, until=0)
        x = float(loop.position.server.w.params["weight"])
        loop.go()
        moved = x - float(loop.position.server.w.params["weight"])
        p = rows / rows.sum() if weighting == "size" else torch.ones(3) / 3
        gradient = (p * (slopes * x - 50) * slopes).sum()
        wanted = 1e-9 * (p * torch.tensor(reach)).sum() * gradient
        assert moved == pytest.approx(float(wanted), rel=1e-5)


def test_a_scheduled_rate_counts_as_it_moves():
    """|a_i| of a rate that halves: clients of equal gradients move as FedAvg moves them."""
    with float64():
        federation, model = lines([3.0, 3.0, 3.0], [2, 3, 7])
        settings = {"lr_schedule": "cosine:rounds=2:end=0.2:per=step", "momentum": 0.5}
        train = Train(batch_size=1, lr=1e-9, **settings)
        found = []
        for method in ("fednova", "fedavg"):
            loop = play(method, federation, [model], 2, train=train, until=0)
            start = float(loop.position.server.w.params["weight"])
            loop.go()
            found.append(start - float(loop.position.server.w.params["weight"]))
        assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_rounds_settle_at_the_optimum_where_fedavg_follows_who_steps_most():
    """Two clients with optima 0 and 1 and equal weights, one of nine times the steps; not quite 0.5
    and 0.9, since steps have a length."""
    with float64():
        rows = [(torch.ones(n, 1), torch.full((n,), float(b))) for n, b in ((1, 0), (9, 1))]
        federation = given(rows, classes=0)
        model = Model(lambda: nn.Linear(1, 1, bias=False), task="squared")
        train = Train(batch_size=1, lr=0.02, weighting="equal")
        found = {
            method: float(personal(play(method, federation, [model], 60, train=train))[0])
            for method in ("fednova", "fedavg")
        }
        assert found["fednova"] == pytest.approx(0.48, abs=0.01)
        assert found["fedavg"] == pytest.approx(0.89, abs=0.01)


def test_running_statistics_are_averaged_as_in_fedavg():
    with float64():
        model = [tiny_model(norm=True)]
        nova, average = (
            play(method, models=model, rounds=1).position.server.w
            for method in ("fednova", "fedavg")
        )
        for name, b in average.buffers.items():
            torch.testing.assert_close(nova.buffers[name], b)


def test_one_number_goes_up_beside_a_model():
    loop, size = play("fednova", rounds=1), tiny_model().size
    cost = {r["metric"]: r["value"] for r in loop.table.whole().to_pylist() if r["client"] == -1}
    assert (cost["bytes_down"], cost["bytes_up"]) == (5 * 4 * size, 5 * 4 * (size + 1))
