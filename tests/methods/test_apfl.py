"""Laws of APFL."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.point import Point, blend, pick
from coterie.methods.apfl import apfl
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

FIXED = {"adaptive": False}
trains = pytest.mark.parametrize(
    "train",
    [Train(batch_size=4), Train(batch_size=4, momentum=0.9, weight_decay=0.01, lr=0.05)],
    ids=["plain", "momentum"],
)


def states(loop):
    """{client: its state}."""
    clients, stacked = loop.engine.states[0].everything()
    return {i: pick(stacked, k) for k, i in enumerate(clients)}


@trains
def test_alpha_one_is_local(train):
    with float64():
        mine = play("apfl", rounds=3, train=train, options={"alpha": 1.0, **FIXED})
        assert_same(personal(mine), personal(play("local", rounds=3, train=train)))


def test_alpha_one_is_local_with_batchnorm_and_dropout():
    with float64():
        models = [tiny_model(norm=True, dropout=0.3)]
        mine = play("apfl", models=models, rounds=3, options={"alpha": 1.0, **FIXED})
        assert_same(personal(mine), personal(play("local", models=models, rounds=3)))


@trains
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_w_is_fedavgs_whatever_alpha_and_alpha_zero_uses_it(train, alpha):
    with float64():
        mine = play(
            "apfl", rounds=3, train=train, options={"alpha": alpha, **FIXED}, participation=0.6
        )
        average = play("fedavg", rounds=3, train=train, participation=0.6)
        torch.testing.assert_close(
            mine.position.server.w.params, average.position.server.w.params, rtol=0, atol=1e-9
        )
        if alpha == 0:
            assert_same(personal(mine), personal(average))
        else:
            assert (personal(mine)[4] - personal(average)[4]).norm() > 1e-3


def test_the_model_used_mixes_v_with_the_received_w():
    with float64():
        loop = play("apfl", rounds=3, options={"alpha": 0.3, **FIXED})
        w = loop.position.server.w
        for i, state in states(loop).items():
            wanted = torch.cat(
                [(0.3 * v + 0.7 * w.params[k]).flatten() for k, v in state.v.params.items()]
            )
            torch.testing.assert_close(personal(loop)[i], wanted, rtol=0, atol=1e-12)


def one_round(steps, alpha=0.5, rate=0.3, rounds=2):
    """The second of two rounds of one client on all its rows: state and w before it, state after
    it.
    """
    train = Train(batch_size=100, lr=rate, local_steps=steps)
    loops = [
        play("apfl", tiny(1), rounds=rounds, until=n, train=train, options={"alpha": alpha})
        for n in (1, 2)
    ]
    return states(loops[0])[0], loops[0].position.server.w, states(loops[1])[0], loops[0]


def test_alpha_descends_on_the_loss_of_the_mixture():
    """By finite differences of alpha -> f(alpha v + (1 - alpha) w'), with its penalty of .01
    alpha^2; once a round.
    """
    with float64():
        before, w, after, loop = one_round(steps=1)
        rows = torch.as_tensor(loop.federation.train[0])
        batch = Batch(
            loop.federation.x[rows],
            loop.federation.y[rows],
            torch.ones(len(rows)),
            torch.arange(len(rows)),
            torch.tensor(0),
        )
        model = loop.engine.models[0]
        stepped = w - 0.3 * model.grad(w, batch)

        def loss(alpha):
            return model.loss(blend(stepped, before.v, alpha), batch) + 0.01 * alpha**2

        slope = (loss(before.alpha + 1e-5) - loss(before.alpha - 1e-5)) / 2e-5
        torch.testing.assert_close(after.alpha, before.alpha - 0.3 * slope, rtol=0, atol=1e-8)
        g = model.grad(blend(stepped, before.v, before.alpha), batch)
        wanted: Point = before.v - 0.3 * before.alpha * g
        torch.testing.assert_close(after.v.params, wanted.params, rtol=0, atol=1e-9)


def test_alpha_moves_once_a_round():
    with float64():
        train = Train(batch_size=100, lr=0.3)
        alphas = [
            states(play("apfl", tiny(1), rounds=1, train=train._replace(local_steps=n)))[0].alpha
            for n in (1, 6)
        ]
        assert alphas[0] != 0.5
        torch.testing.assert_close(alphas[0], alphas[1], rtol=0, atol=1e-12)


def test_alpha_stays_a_share():
    loop = play("apfl", rounds=6, train=Train(batch_size=4, lr=3.0))
    alphas = [float(state.alpha) for state in states(loop).values()]
    assert all(0 <= a <= 1 for a in alphas)
    assert min(alphas) == 0 or max(alphas) == 1  # the rate is large enough to need the bounds


def test_clients_that_disagree_keep_more_of_their_own():
    def alpha(groups):
        loop = play("apfl", tiny(6, groups=groups), rounds=30)
        return np.mean([float(state.alpha) for state in states(loop).values()])

    assert alpha(3) > alpha(1) + 0.05


def test_alpha_outside_its_range_is_refused():
    with pytest.raises(BadInput, match=r"alpha = 1\.5"):
        apfl(tiny_model(), Train(), alpha=1.5)
