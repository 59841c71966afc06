"""Laws of Per-FedAvg."""

import pytest
import torch
from torch import nn
from torch.func import grad

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.methods.perfedavg import curvature, perfedavg
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(
    batch_size=100, lr=0.2, local_steps=1
)  # one step a round, on all rows: every batch of it is the same


def smooth() -> Model:
    """A network without kinks, where differences converge."""
    return Model(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), name="smooth")


def rows_of(federation, client, part="train") -> Batch:
    rows = torch.as_tensor(getattr(federation, part)[client])
    return Batch(
        federation.x[rows],
        federation.y[rows],
        torch.ones(len(rows)),
        torch.arange(len(rows)),
        torch.tensor(0),
    )


def flat(params) -> torch.Tensor:
    return torch.cat([a.flatten() for a in params.values()])


def start(train=WHOLE, **options) -> Point:
    return play(
        "perfedavg", tiny(1), [smooth()], until=0, train=train, options=options
    ).position.server.w


def test_the_difference_of_gradients_is_the_hessian_times_g():
    with float64():
        model, federation = smooth(), tiny(1)
        batch, w = rows_of(federation, 0), start()
        g = model.grad(w, batch)
        exact = grad(lambda p: model.grad(Point(p), batch).dot(g))(w.params)
        near = {d: flat(curvature(model, w, g, batch, d).params) for d in (1e-2, 1e-3)}
        torch.testing.assert_close(near[1e-3], flat(exact), rtol=0, atol=1e-6)
        errors = [(near[d] - flat(exact)).norm() for d in (1e-2, 1e-3)]
        assert (
            50 < errors[0] / errors[1] < 200
        )  # a central difference: the error falls with the square of delta


@pytest.mark.parametrize("variant", ["hf", "fo"])
def test_a_step_descends_on_the_loss_after_adaptation(variant):
    """HF along the whole gradient of f(w - alpha grad f(w)), FO along the gradient at the adapted
    model.
    """
    with float64():
        model, federation, alpha = smooth(), tiny(1), 0.4
        batch, w = rows_of(federation, 0), start()

        def adapted(p):
            slope = grad(lambda q: model.loss(Point(q), batch))(p)
            return {k: a - alpha * slope[k] for k, a in p.items()}

        whole = grad(lambda p: model.loss(Point(adapted(p)), batch))(w.params)
        first = grad(lambda p: model.loss(Point(p), batch))(adapted(w.params))
        slope = whole if variant == "hf" else first
        wanted = flat(w.params) - WHOLE.lr * flat(slope)
        options = {"variant": variant, "alpha": alpha}
        loop = play("perfedavg", federation, [model], rounds=1, train=WHOLE, options=options)
        torch.testing.assert_close(flat(loop.position.server.w.params), wanted, rtol=0, atol=1e-6)
        assert (flat(whole) - flat(first)).norm() > 1e-2  # so that the two variants are told apart


def test_the_model_used_is_one_step_on_training_rows():
    with float64():
        model, federation = tiny_model(), tiny()
        loop = play("perfedavg", federation, [model], train=WHOLE, options={"alpha": 0.3})
        w = loop.position.server.w
        wanted = {
            i: flat((w - 0.3 * model.grad(w, rows_of(federation, i))).params) for i in range(5)
        }
        assert_same(personal(loop), wanted)
        torch.testing.assert_close(
            loop.position.server.w.params, w.params
        )  # and it is discarded after


def test_adaptation_sees_training_rows_only():
    federation = tiny()
    wild = federation._replace(x=federation.x.clone(), y=federation.y.clone())
    for part in (federation.validation, federation.test):
        for rows in part:
            wild.x[rows], wild.y[rows] = 1e6, 0
    assert_same(personal(play("perfedavg", federation)), personal(play("perfedavg", wild)), 0)
    own = federation._replace(x=federation.x.clone())
    own.x[federation.train[0]] += 1
    loop = play("perfedavg", federation, until=0)
    assert not torch.equal(personal(loop)[0], personal(play("perfedavg", own, until=0))[0])


@pytest.mark.parametrize("variant", ["hf", "fo"])
def test_without_adaptation_it_is_fedavg(variant):
    with float64():
        train = WHOLE._replace(local_steps=4, momentum=0.9, weight_decay=0.01)
        options = {"variant": variant, "alpha": 0.0}
        assert_same(
            personal(play("perfedavg", train=train, options=options)),
            personal(play("fedavg", train=train)),
        )


def test_each_step_takes_batches_of_its_own():
    for variant, batches in (("fo", 2), ("hf", 3)):
        plan = perfedavg(tiny_model(), Train(batch_size=4), variant=variant).round[0].passes[0].plan
        assert plan.batches == batches


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"variant": "hff"}, "variant = 'hff': give fo or hf"),
        ({"alpha": -1.0}, "alpha = -1"),
        ({"delta": 0.0}, "delta = 0"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line) as caught:
        perfedavg(tiny_model(), Train(), **options)
    assert "\n" not in str(caught.value)
