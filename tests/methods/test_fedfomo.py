"""Laws of FedFomo."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.point import Point, flatten, pick, stack
from coterie.methods.fedfomo import FedFomoServer, choose_offers, fedfomo, mix_models, score_models
from coterie.methods.last_models import LastModels
from coterie.methods.mixing import Mixing
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model, watched


def line(*values) -> Point:
    """Models of one parameter."""
    return Point({"a": torch.tensor([[float(v)] for v in values])})


def validation(federation, i) -> Batch:
    rows = torch.as_tensor(federation.validation[i])
    return Batch(
        federation.x[rows],
        federation.y[rows],
        torch.ones(len(rows)),
        torch.arange(len(rows)),
        torch.tensor(0),
    )


def test_scores_and_weights_by_hand():
    theta, models = pick(line(0.0), 0), line(0.0, 2.0, 4.0, -1.0)
    scores = score_models(theta, models, torch.tensor([0.0, 1.0, 6.0, -3.0]))
    torch.testing.assert_close(scores, torch.tensor([0.0, 0.5, 1.5, -3.0]))
    torch.testing.assert_close(
        mix_models(theta, models, scores).params["a"], torch.tensor([0.25 * 2 + 0.75 * 4])
    )


def test_a_harmful_model_has_no_weight():
    theta, good = pick(line(1.0), 0), line(3.0, 7.0)
    wild = line(3.0, 7.0, 1e6)
    without = mix_models(theta, good, torch.tensor([0.2, 0.1]))
    torch.testing.assert_close(
        mix_models(theta, wild, torch.tensor([0.2, 0.1, -0.01])).params, without.params
    )


def test_where_nothing_helps_the_client_keeps_its_model():
    theta = pick(line(1.0), 0)
    assert torch.equal(
        mix_models(theta, line(3.0, 7.0), torch.tensor([-1.0, 0.0])).params["a"], theta.params["a"]
    )


def one(point: Point) -> torch.Tensor:
    """A model as a vector."""
    return flatten(stack([point]))[0]


def mixtures(loop) -> dict[int, Point]:
    """Every client's model before its last training."""
    found = {}
    for _, chunk, points in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        found |= {i: pick(points["after_mixing"], k) for k, i in enumerate(chunk)}
    return found


@pytest.mark.parametrize("own", ["stays", "competes"])
def test_a_round_mixes_by_validation_loss(own):
    """The whole chain against a computation of its own: losses, scores, mixture, P. What competes
    with the client's trained model is the one before that training.
    """
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"own": own, "offers": 6}  # more than there are clients
        loop = play("fedfomo", federation, [model], rounds=4, until=3, options=options)
        theta = dict(enumerate(torch.unbind(flatten(loop.position.server.last.models))))
        before = loop.position.server
        last = before.last.models
        base = mixtures(loop) if own == "competes" else {i: pick(last, i) for i in theta}
        sent, original = {}, loop.engine.exchange

        def exchange(trip):
            sent.update({i: trip.send(i) for i in trip.clients})
            return original(trip)

        loop.engine.exchange = exchange
        loop.go()
        after = loop.position.server.affinity.weights - before.affinity.weights
        views = {i: one(point) for i, point in mixtures(loop).items()}
        moved = 0
        for i in range(5):
            batch, b = validation(federation, i), one(base[i])
            mine = model.loss(base[i], batch)
            gains = {
                j: mine - model.loss(pick(last, j), batch)
                for j in set(sent[i].ids.tolist())  # its own again in free slots counts once
                if j != i or own == "competes"
            }
            d = {j: float(gain / (theta[j] - b).norm()) for j, gain in gains.items()}
            good = {j: max(0.0, value) for j, value in d.items()}
            total = sum(good.values())
            wanted = b + sum((good[j] / total) * (theta[j] - b) for j in d) if total else b
            moved += total > 0
            torch.testing.assert_close(views[i], wanted, rtol=0, atol=1e-9)
            for j in range(5):
                assert float(after[i, j]) == pytest.approx(d.get(j, 0.0), abs=1e-9)
        assert moved >= 2  # so that the test has something to see
        assert (after < 0).any()  # scores travel with their sign


def test_the_upload_names_the_slots_it_scored():
    _, [(sent, replies, traffic)] = watched("fedfomo")
    model = tiny_model()
    assert torch.equal(replies.upload.ids, torch.stack([sent[i].ids for i in range(5)]))
    assert all(int(sent[i].ids[0]) == i for i in range(5))
    models = 4 * model.size  # bytes
    assert traffic.down == 5 * (5 * models + 5 * 8)
    assert traffic.up == 5 * (models + 5 * 8 + 5 * 4)


def server(n=8, heard=None) -> FedFomoServer:
    models = stack([pick(line(float(i)), 0) for i in range(n)])
    known = torch.ones(n, dtype=torch.bool) if heard is None else heard
    affinity = torch.arange(n, dtype=torch.float32).repeat(n, 1)
    return FedFomoServer(LastModels(models, known), Mixing(affinity), torch.tensor(0))


def test_offers_are_the_best_unless_chance_says_otherwise():
    best = choose_offers(server(), 2, 4, 0.0, np.random.default_rng(0))
    assert best == [2, 7, 6, 5]
    drawn = [choose_offers(server(), 2, 4, 1.0, np.random.default_rng(k)) for k in range(200)]
    assert all(ids[0] == 2 and len(set(ids)) == 4 for ids in drawn)
    counts = np.bincount(np.array([ids[1:] for ids in drawn]).ravel(), minlength=8)
    assert counts[2] == 0
    assert counts[[0, 1, 3, 4, 5, 6, 7]].min() > 50


def test_free_slots_hold_the_clients_own_model():
    heard = torch.zeros(8, dtype=torch.bool)
    heard[5] = True
    assert choose_offers(server(heard=heard), 2, 4, 0.3, np.random.default_rng(0)) == [2, 5, 2, 2]


def test_chance_runs_out():
    method = fedfomo(tiny_model(), Train(), offers=3, eps=1.0, eps_step=0.5)
    late = server()._replace(round=torch.tensor(2))
    offers = {
        tuple(method.round[0].send(late, 2, np.random.default_rng(k)).ids.tolist())
        for k in range(20)
    }
    assert offers == {(2, 7, 6)}


def test_the_first_round_is_local_training():
    with float64():
        assert_same(personal(play("fedfomo", rounds=1)), _locally(1))


def _locally(rounds):
    return personal(play("local", rounds=rounds))


def test_validation_rows_decide_and_nothing_else():
    federation = tiny()
    turned = federation._replace(y=federation.y.clone())
    for rows in federation.validation:
        turned.y[rows] = (federation.y[rows] + 1) % 3
    a, b = (play("fedfomo", f, rounds=4).position.server.affinity for f in (federation, turned))
    assert not torch.equal(a.weights, b.weights)
    with pytest.raises(BadInput, match="validation"):
        play("fedfomo", tiny(validation=0))


def test_helpers_are_found_within_the_group():
    loop = play("fedfomo", tiny(6, validation=12), rounds=20, options={"offers": 4})
    p, group = loop.position.server.affinity.weights, torch.as_tensor(loop.federation.groups)
    same = (group[:, None] == group).fill_diagonal_(False)
    assert p[same].mean() > p[group[:, None] != group].mean()


def test_a_newcomer_is_offered_models():
    loop = play("fedfomo", rounds=3)
    method = loop.program[0].method
    wider = method.admit(loop.position.server)
    offer = method.round[0].send(wider, 5, np.random.default_rng(0))
    assert len(set(offer.ids.tolist())) == 5
    torch.testing.assert_close(
        flatten(pick(offer.models, slice(0, 1)))[0],
        flatten(loop.position.server.last.models).mean(0),
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [({"offers": 1}, "offers = 1"), ({"eps": 2.0}, "eps = 2"), ({"eps_step": -1.0}, "eps_step")],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line):
        fedfomo(tiny_model(), Train(), **options)
