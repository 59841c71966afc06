"""A server optimizer moves the server's model as Algorithm 2 of its paper says, round by round."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.point import flatten, stack
from coterie.core.server_optimizers import SERVER_OPTIMIZERS
from coterie.methods.declare import declaration_of, refused_of
from coterie.methods.registry import METHODS
from helpers.federations import MODELS, OPTIONS, TRAIN, assert_same, float64, play, tiny_model
from helpers.federations import personal as personal_models

AVERAGING = [
    name
    for name, build in METHODS.items()
    if declaration_of(build).uploads == "mean" and "server_optimizer" not in refused_of(build)
]
OWN = {"fedadam": "adam", "fedyogi": "yogi", "fedadagrad": "adagrad", "fedavgm": "sgd:momentum=0.9"}
B1, B2, TAU = 0.9, 0.99, 1e-3


def published(name, deltas, eta):
    """Where Algorithm 2 (FedAvgM: Hsu et al.) takes a model from 0 along these mean changes, which
    are those at hand whatever the model; in plain numbers.
    """
    x, m, v = (np.zeros_like(deltas[0]) for _ in range(3))
    v += TAU**2
    for d in deltas:
        if name == "fedavgm":
            m = 0.9 * m + d
            x = x + eta * m
            yield x
            continue
        beta1 = 0.0 if name == "fedadagrad" else B1
        m = beta1 * m + (1 - beta1) * d
        if name == "fedadagrad":
            v = v + d**2
        elif name == "fedadam":
            v = B2 * v + (1 - B2) * d**2
        else:
            v = v - (1 - B2) * d**2 * np.sign(v - d**2)
        x = x + eta * m / (np.sqrt(v) + TAU)
        yield x


def one(point):
    return flatten(stack([point]))[0].numpy()


@pytest.mark.parametrize("eta", [0.0, 0.3])
@pytest.mark.parametrize("name", OWN)
def test_the_server_moves_as_published(name, eta):
    """Four rounds: the mean of the uploads less what was sent is Delta, the rest is the paper's."""
    with float64():
        loop = play(name, rounds=4, until=0, train=TRAIN._replace(server_lr=eta))
        exchange, trips = loop.engine.exchange, []

        def watched(trip):
            before, outcome = one(trip.send(0)), exchange(trip)
            weights = outcome.replies.weights
            trips.append((before, one_mean(outcome.replies.upload, weights) - before))
            return outcome

        loop.engine.exchange = watched
        loop.go()
        start, deltas = trips[0][0], [delta for _, delta in trips]
        rates = {"fedavgm": 1.0, "fedadagrad": 0.1}
        paths = list(published(name, deltas, eta or rates.get(name, 0.01)))
        reached = [before for before, _ in trips[1:]] + [one(loop.payload()(0))]
        for found, right in zip(reached, paths, strict=True):
            np.testing.assert_allclose(found, start + right, rtol=1e-12, atol=1e-12)


def one_mean(upload, weights):
    return (weights @ flatten(upload)).numpy()


@pytest.mark.parametrize(("name", "spec"), OWN.items())
def test_fedavg_with_the_optimizer_is_the_method(name, spec):
    assert_same(
        personal_models(play(name, rounds=3)),
        personal_models(play("fedavg", rounds=3, train=TRAIN._replace(server_optimizer=spec))),
        0,
    )


@pytest.mark.parametrize("name", sorted(set(AVERAGING) - set(OWN)))
def test_a_step_of_one_without_momentum_is_the_method_itself(name):
    with float64():
        train = TRAIN._replace(server_optimizer="sgd")
        assert_same(personal_models(play(name)), personal_models(play(name, train=train)))


@pytest.mark.parametrize("name", sorted(set(AVERAGING) - set(OWN)))
def test_every_method_that_averages_takes_every_server_optimizer(name):
    plain = personal_models(play(name))
    found = [plain]
    for spec in SERVER_OPTIMIZERS:
        train = TRAIN._replace(server_optimizer=spec, server_lr=0.02)
        found.append(personal_models(play(name, train=train)))
        assert all(torch.isfinite(w).all() for w in found[-1].values())
    for k, one in enumerate(found):
        assert all(any(not torch.equal(one[i], other[i]) for i in one) for other in found[:k])


def build(name, train):
    return METHODS[name](MODELS.get(name, tiny_model)(), train, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(AVERAGING) - set(OWN)))
def test_a_method_that_does_not_average_refuses_it_by_name(name):
    with pytest.raises(BadInput, match=f"^{name} refuses server_optimizer = adam, since its"):
        build(name, TRAIN._replace(server_optimizer="adam"))


@pytest.mark.parametrize(
    ("name", "settings", "options", "line"),
    [
        ("fedavg", {"server_lr": 0.1}, {}, "server_lr = 0.1 is that of a server optimizer"),
        ("fedavg", {"server_optimizer": "adm"}, {}, "server_optimizer = 'adm': unknown; did you"),
        ("fedadam", {"server_optimizer": "adam"}, {}, "it is FedAvg with a server optimizer of"),
        ("pfml", {"server_optimizer": "adam"}, {"beta": 2.0}, "only with beta = 1.0"),
        ("persfl", {"server_optimizer": "sgd"}, {"keep_models": True}, "keep_models = no"),
    ],
)
def test_two_rules_for_one_step_are_refused(name, settings, options, line):
    with pytest.raises(BadInput) as told:
        METHODS[name](tiny_model(), TRAIN._replace(**settings), **options)
    assert line in str(told.value)
