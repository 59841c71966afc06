"""Laws of FedDyn: its first round is FedProx's, taken twice as far; drifts add up to the server's;
exact local minima have a closed form, and rounds settle at the optimum of all clients.
"""

import pytest
import torch
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.point import blend
from coterie.methods.registry import METHODS
from helpers.federations import TRAIN, assert_same, float64, given, personal, play, tiny_model

EQUAL = TRAIN._replace(weighting="equal")


def parabolas(curvature, centre, rows=(1, 1, 1)):
    """f_i(w) = a_i / 2 (w - b_i)^2, so many equal rows a client."""
    clients = [
        (torch.full((n, 1), a**0.5), torch.full((n,), a**0.5 * b))
        for a, b, n in zip(curvature, centre, rows, strict=True)
    ]
    return given(clients, classes=0), Model(lambda: nn.Linear(1, 1, bias=False), task="squared")


def test_the_first_round_is_fedprox_taken_twice_as_far():
    """Nobody has drifted before, and the mean's own change is the drift that is added to it."""
    with float64():
        start = play("fedprox", rounds=1, train=EQUAL, until=0).position.server.w
        prox = play("fedprox", rounds=1, train=EQUAL, options={"mu": 0.7}).position.server.w
        found = play("feddyn", rounds=1, train=EQUAL, options={"alpha": 0.7}).position.server.w
        for name, a in blend(start, prox, 2.0).params.items():
            torch.testing.assert_close(found.params[name], a, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_the_servers_drift_is_the_mean_of_all_clients(weighting):
    """Whoever takes part: a client never asked has none."""
    with float64():
        train = TRAIN._replace(weighting=weighting)
        loop = play("feddyn", rounds=6, participation=0.6, dropout_clients=0.2, train=train)
        states = loop.engine.states[0].everything()[1]
        for name, drift in loop.position.server.drift.params.items():
            assert float(drift.abs().max()) > 1e-3
            torch.testing.assert_close(drift, states.params[name].sum(0) / 5, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("weighting", "share"), [("equal", [1, 1, 1]), ("size", [0.5, 1, 1.5])])
def test_rounds_of_exact_minima_are_the_papers(weighting, share):
    """theta_i, d_i and w in closed form, by the letters of Algorithm 1: g_i = -alpha d_i is the
    gradient of the client's (weighted) loss at theta_i.
    """
    with float64():
        a, b = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([5.0, -1.0, 2.0])
        federation, model = parabolas(a.tolist(), b.tolist(), (2, 4, 6))
        train = Train(batch_size=100, lr=0.3, local_steps=200, weighting=weighting)
        loop = play("feddyn", federation, [model], 3, train=train, options={"alpha": 0.8}, until=0)
        w = float(personal(loop)[0])
        own, g, h = torch.tensor(share, dtype=torch.float64), torch.zeros(3), 0.0
        for count in range(1, 4):
            theta = (own * a * b + g + 0.8 * w) / (own * a + 0.8)
            g = g - 0.8 * (theta - w)
            torch.testing.assert_close(g, own * a * (theta - b))
            h = h - 0.8 * float((theta - w).mean())
            w = float(theta.mean()) - h / 0.8
            loop.go(until=count)
            assert float(personal(loop)[0]) == pytest.approx(w, abs=1e-9)


@pytest.mark.parametrize("sample", [1.0, 0.7])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_feddyn_reaches_the_optimum_where_fedavg_drifts(sample, momentum):
    with float64():
        a, b, n = [0.2, 1.0, 4.0], [5.0, -1.0, 2.0], (1, 2, 5)
        federation, model = parabolas(a, b, n)
        train = Train(batch_size=8, lr=0.2, local_steps=8, momentum=momentum)
        pull = [p * rows for p, rows in zip(a, n, strict=True)]
        optimum = sum(p * q for p, q in zip(pull, b, strict=True)) / sum(pull)
        found = {}
        for method, options in (("feddyn", {"alpha": 1.0}), ("fedavg", {})):
            loop = play(
                method, federation, [model], 40, train=train, options=options, participation=sample
            )
            found[method] = float(personal(loop)[0])
        assert found["feddyn"] == pytest.approx(optimum, abs=1e-3)
        assert abs(found["fedavg"] - optimum) > 0.1


def test_clients_of_one_size_have_one_alpha():
    with float64():
        x, y = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
        federation = given([(x, y), (2 * x, y), (x + 1, y)])
        found = [
            personal(play("feddyn", federation, train=TRAIN._replace(weighting=weighting)))
            for weighting in ("size", "equal")
        ]
        assert_same(*found)


def test_a_newcomer_has_not_drifted():
    with float64():
        loop = play("feddyn")
        wider = loop.program[0].method.admit(loop.position.server)
        assert len(wider.a) == 6
        states = loop.engine.states[0].everything()[1]
        for name, drift in wider.drift.params.items():
            torch.testing.assert_close(drift, states.params[name].sum(0) / 6, rtol=1e-9, atol=1e-12)


def test_another_server_step_is_refused():
    with pytest.raises(BadInput, match="its server adds the clients' drift"):
        METHODS["feddyn"](tiny_model(), TRAIN._replace(server_optimizer="adam"))
