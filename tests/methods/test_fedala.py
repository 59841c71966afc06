"""Laws of FedALA."""

import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.model import begin
from coterie.core.point import Point, pick
from coterie.methods.fedala import FedALACarry, fedala, mix_layers
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model, watched

WHOLE = Train(batch_size=100, local_epochs=3, lr=0.2)


def states(loop):
    clients, stacked = loop.engine.states[0].everything()
    return {i: pick(stacked, k) for k, i in enumerate(clients)}


def rows_of(federation, i) -> Batch:
    rows = torch.as_tensor(federation.train[i])
    return Batch(
        federation.x[rows],
        federation.y[rows],
        torch.ones(len(rows)),
        torch.arange(len(rows)),
        torch.tensor(0),
    )


def test_weights_of_one_adopt_the_global_model_and_zero_keeps_ones_own_top():
    model = tiny_model()
    own, received = model.start(1), model.start(2)
    top = {k: torch.ones(shape) for k, shape in model.shapes.items() if model.head(1)(k)}
    torch.testing.assert_close(mix_layers(own, received, top).params, received.params)
    kept = mix_layers(own, received, {k: 0 * w for k, w in top.items()})
    for k in model.shapes:
        assert torch.equal(kept.params[k], (own if k in top else received).params[k])
    assert list(kept.params) == list(model.shapes)


def test_with_weights_of_one_it_is_fedavg():
    with float64():
        mine = play("fedala", rounds=4, train=WHOLE, options={"weight_lr": 0.0})
        average = play("fedavg", rounds=4, train=WHOLE)
        assert_same(personal(mine), personal(average))
        torch.testing.assert_close(mine.position.server.w.params, average.position.server.w.params)
        learned = play("fedala", rounds=4, train=WHOLE)
        assert (personal(learned)[0] - personal(average)[0]).norm() > 1e-3


def test_a_weight_descends_on_the_loss_of_the_mixture():
    """One step against autograd through the mixture, clipped to [0, 1]."""
    with float64():
        model, federation, rate = tiny_model(), tiny(), 0.3
        own, received, batch = model.start(1), model.start(2), rows_of(federation, 4)
        weights = {
            k: torch.full(shape, 0.9) for k, shape in model.shapes.items() if model.head(1)(k)
        }
        learn = fedala(model, Train(), weight_lr=rate).round[0].passes[0].step
        after = learn(FedALACarry(begin(received, Train()), own, received, weights), batch).weights
        free = {k: w.clone().requires_grad_() for k, w in weights.items()}
        slopes = torch.autograd.grad(
            model.loss(mix_layers(own, received, free), batch), list(free.values())
        )
        for (k, w), slope in zip(weights.items(), slopes, strict=True):
            torch.testing.assert_close(after[k], (w - rate * slope).clamp(0, 1))
            assert (slope != 0).any()


def test_weights_stay_shares_and_move():
    loop = play("fedala", rounds=5, options={"weight_lr": 50.0})
    weights = torch.cat(
        [w.flatten() for state in states(loop).values() for w in state.weights.values()]
    )
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights == 0).any()
    assert (weights < 1).sum() > 10
    gentle = play("fedala", rounds=5)
    weights = torch.cat(
        [w.flatten() for state in states(gentle).values() for w in state.weights.values()]
    )
    assert ((weights > 0) & (weights < 1)).any()


def test_learning_the_weights_lowers_the_loss_of_the_start():
    with float64():
        federation, model = tiny(), tiny_model()
        loop = play("fedala", federation, [model], rounds=6)
        w, gains = loop.position.server.w, []
        views = {}
        for _, chunk, points in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
            views |= {i: pick(points["personal"], k) for k, i in enumerate(chunk)}
        for i in range(5):
            batch = rows_of(federation, i)
            gains.append(float(model.loss(w, batch) - model.loss(views[i], batch)))
        assert min(gains) > 0


def test_local_training_starts_at_the_mixture():
    with float64():
        model, train = tiny_model(), Train(batch_size=100, lr=0.2, local_steps=1)
        loops = [
            play("fedala", models=[model], train=train, rounds=3, until=n, options={"share": 1.0})
            for n in (2, 3)
        ]
        before, after = (states(loop) for loop in loops)
        for i in range(5):
            start = mix_layers(before[i].own, loops[0].position.server.w, after[i].weights)
            wanted = start - 0.2 * model.grad(start, rows_of(tiny(), i))
            torch.testing.assert_close(after[i].own.params, wanted.params)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_layers_below_are_the_global_ones(layers):
    model = tiny_model()
    loop = play("fedala", models=[model], rounds=4, options={"top_layers": layers})
    w = loop.position.server.w
    for _, _, points in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        for k, a in points["personal"].params.items():
            whole = torch.equal(a, w.params[k].expand_as(a))
            assert whole is not model.head(layers)(k)


def test_first_visits_learn_nothing_second_ones_much_later_ones_little():
    model, train = tiny_model(), Train(batch_size=4)
    trip = fedala(model, train, share=0.5, first_epochs=7).round[0]
    state = fedala(model, train).join(model.start(0), None)
    counts = [
        int(trip.steps(state._replace(visits=torch.tensor(n)), None, torch.tensor(17)))
        for n in (0, 1, 2, 9)
    ]
    assert counts == [0, 14, 2, 2]  # half of 17 rows are two batches
    _, [(_, _, traffic)] = watched("fedala")
    assert traffic.steps == sum(-(-len(rows) // 4) for rows in tiny().train)


def test_using_a_model_leaves_the_client_as_it_was():
    loop = play("fedala", rounds=3)
    before = states(loop)
    loop.evaluate()
    for i, state in states(loop).items():
        for k, a in state.weights.items():
            assert torch.equal(a, before[i].weights[k])
        assert torch.equal(state.own.params["2.weight"], before[i].own.params["2.weight"])
    assert isinstance(before[0].own, Point)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"top_layers": 3}, "top_layers = 3: tiny-5 has 2 layers"),
        ({"top_layers": 0}, "top_layers = 0"),
        ({"share": 0.0}, "share = 0"),
        ({"weight_lr": -1.0}, "weight_lr = -1"),
        ({"first_epochs": 0}, "first_epochs = 0"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line):
        fedala(tiny_model(), Train(), **options)
