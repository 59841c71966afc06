"""Laws of FedAMP and HeurFedAMP."""

import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.point import Point, flatten, mean, pick
from coterie.methods.fedamp import attend_alike, attend_near, fedamp, heurfedamp
from coterie.methods.peers import compare_cosines, compare_distances
from coterie.networks.registry import build_network
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

both = pytest.mark.parametrize("name", ["fedamp", "heurfedamp"])


def cloud(n=6, d=9, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def everyone(n):
    return torch.ones(n, dtype=torch.bool)


def attentive(w, heard, alpha, sigma):
    xi, used = attend_near(compare_distances(Point({"w": w}), heard, 0), alpha, sigma)
    return xi.weights, used


def heuristic(w, heard, own, sigma):
    return attend_alike(compare_cosines(Point({"w": w}), heard, 0), own, sigma).weights


@pytest.mark.parametrize("alpha", [0.1, 2.0, 1e6])
@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_rows_sum_to_one_and_none_is_negative(alpha, sigma):
    xi, used = attentive(cloud(), everyone(6), alpha, sigma)
    torch.testing.assert_close(xi.sum(1), torch.ones(6, dtype=xi.dtype))
    assert (xi >= 0).all()
    assert used <= alpha
    if alpha == 1e6:
        assert xi.diagonal().min() < 1e-12  # lowered no further than it must be


def test_message_passing_is_a_descent_step_on_the_attention():
    """u = W - alpha/2 grad sum_{i<j} A(|w_i - w_j|^2)."""
    w, alpha, sigma = cloud().requires_grad_(), 0.7, 20.0
    distance = (w[:, None] - w).square().sum(-1)
    energy = (1 - torch.exp(-distance / sigma)).triu(1).sum()
    (gradient,) = torch.autograd.grad(energy, w)
    xi, used = attentive(w.detach(), everyone(6), alpha, sigma)
    assert used == alpha
    torch.testing.assert_close(xi @ w.detach(), w.detach() - alpha / 2 * gradient)


def test_heuristic_weighs_the_like_minded():
    w = cloud()
    w[1], w[2] = 2 * w[0] + 0.01 * w[1], -w[0]  # a friend at another length, and an opposite
    xi = heuristic(w, everyone(6), own=0.3, sigma=4.0)
    torch.testing.assert_close(xi.sum(1), torch.ones(6, dtype=xi.dtype))
    torch.testing.assert_close(xi.diagonal(), torch.full((6,), 0.3, dtype=xi.dtype))
    assert xi[0].argsort(descending=True)[0] == 1
    assert xi[0].argmin() == 2
    torch.testing.assert_close(
        (xi[0, 1] / xi[0, 2]).log(), torch.tensor(8.0, dtype=xi.dtype), rtol=0, atol=1e-3
    )  # e^{sigma 2}
    torch.testing.assert_close(
        heuristic(w, everyone(6), 0.0, 4.0).diagonal(), torch.full((6,), 1 / 6, dtype=xi.dtype)
    )
    sharper = heuristic(w, everyone(6), 0.3, 12.0)
    assert sharper[0, 1] > xi[0, 1]


@both
def test_lam_zero_is_local(name):
    with float64():
        train = Train(batch_size=4, momentum=0.9)
        mine = play(name, rounds=3, train=train, options={"lam": 0.0})
        assert_same(personal(mine), personal(play("local", rounds=3, train=train)))


@both
def test_clients_move_towards_u_as_lam_grows(name):
    gaps = []
    with float64():
        before = play(name, rounds=3, until=2)
        u = flatten(before.position.server.u)
        for lam in (0.0, 0.3, 3.0, 3000.0):
            loop = play(name, rounds=3, until=2)
            pull = torch.tensor(lam)
            loop.position = loop.position._replace(server=loop.position.server._replace(pull=pull))
            loop.go()
            gaps.append(sum(float((personal(loop)[i] - u[i]).norm()) for i in range(5)))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[2] < 0.7 * gaps[0]
    assert gaps[3] < 0.01 * gaps[0]


@pytest.mark.parametrize("pull", [0.5, 4.0, 200.0])
def test_a_client_reaches_the_proximal_minimum(pull):
    """On f(w) = |w - c|^2 / 2: w = (c + p u) / (1 + p), for any p."""
    with float64():
        federation = tiny(1)
        targets = federation.x + 3
        net = Model(lambda: build_network("mean", (6,), 1), "squared", "mean")
        train = Train(batch_size=100, lr=0.1, local_steps=400)
        options = {"lam": pull, "alpha": 1.0}
        loop = play(
            fedamp,
            federation._replace(y=targets, classes=0),
            [net],
            rounds=1,
            train=train,
            options=options,
        )
        u = flatten(
            play(
                fedamp, federation._replace(y=targets, classes=0), [net], until=0, train=train
            ).position.server.u
        )[0]
        c = targets[federation.train[0]].mean(0)
        torch.testing.assert_close(
            personal(loop)[0], (c + pull * u) / (1 + pull), rtol=0, atol=1e-9
        )


@both
def test_clients_of_one_mind_find_each_other(name):
    loop = play(name, tiny(6), rounds=25, options={"sigma": 5.0 if name == "fedamp" else 10.0})
    xi, group = loop.position.server.xi.weights, torch.as_tensor(loop.federation.groups)
    same = (group[:, None] == group).fill_diagonal_(False)
    other = group[:, None] != group
    assert xi[same].mean() > 1.3 * xi[other].mean()
    torch.testing.assert_close(xi.sum(1), torch.ones(6))


@both
def test_u_mixes_the_last_known_models_of_those_heard(name):
    with float64():
        loop = play(name, rounds=2, participation=0.4)
        server = loop.position.server
        (models, heard), xi = server.last, server.xi.weights
        assert not heard.all()
        assert (xi[:, ~heard] - torch.diag(xi.diagonal())[:, ~heard] == 0).all()
        torch.testing.assert_close(flatten(server.u), xi @ flatten(models))
        for i in heard.nonzero().flatten().tolist():
            torch.testing.assert_close(flatten(models)[i], personal(loop)[i])
        middle = flatten(models)[heard].mean(0)
        for i in (~heard).nonzero().flatten().tolist():
            torch.testing.assert_close(flatten(models)[i], middle)


@both
def test_a_newcomer_gets_a_row_of_its_own(name):
    loop = play(name)
    method = loop.program[0].method
    wider = method.admit(loop.position.server)
    xi, models = wider.xi.weights, wider.last.models
    assert xi.shape == (6, 6)
    torch.testing.assert_close(xi.sum(1), torch.ones(6))
    assert (xi[:5, 5] == 0).all()
    payload = method.round[0].send(wider, 5, None)
    torch.testing.assert_close(payload.u.params, mean(models, xi[5]).params)
    assert set(pick(models, 5).params) == set(payload.u.params)


def test_alpha_falls_round_by_round():
    pulls = [
        float(
            play(
                "fedamp", until=n, options={"alpha": 0.01, "alpha_decay": 0.5}
            ).position.server.pull
        )
        for n in (0, 1, 2)
    ]
    assert pulls == pytest.approx([10.0, 20.0, 40.0], rel=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "line"),
    [
        (fedamp, {"lam": -1.0}, "lam = -1"),
        (fedamp, {"alpha": 0.0}, "alpha = 0"),
        (fedamp, {"sigma": 0.0}, "sigma = 0"),
        (fedamp, {"alpha_decay": 2.0}, "alpha_decay = 2"),
        (heurfedamp, {"own": 1.0}, "own = 1"),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_bad_options_are_refused_in_one_line(method, options, line):
    with pytest.raises(BadInput, match=line) as caught:
        method(tiny_model(), Train(), **options)
    assert "\n" not in str(caught.value)
