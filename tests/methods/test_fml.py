"""FML: its limits, its losses against plain torch, another private network."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train
from coterie.core.model import Model
from coterie.core.point import Point
from coterie.core.rng import stream
from coterie.methods.fml import LossWeights, build_mutual_gradients, fml
from coterie.networks.registry import build_network
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model


def shared():
    return Model(lambda: build_network("mlr", (6,), 3), name="mlr", input_shape=(6,))


def flat(point):
    return torch.cat([t.flatten() for t in point.params.values()])


@pytest.mark.parametrize(
    "train",
    [Train(batch_size=4), Train(batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01)],
    ids=["plain", "momentum"],
)
def test_labels_only_is_fedavg_and_local_side_by_side(train):
    with float64():
        both = play(
            "fml",
            rounds=3,
            train=train,
            options={"alpha": 1.0, "beta": 1.0},
            participation=0.6,
            trains="all",
        )
        average = play("fedavg", rounds=3, train=train, participation=0.6, trains="all")
        assert_same(
            personal(both),
            personal(play("local", rounds=3, train=train, participation=0.6, trains="all")),
        )
        torch.testing.assert_close(
            flat(both.position.server.w), flat(average.position.server.w), rtol=0, atol=1e-9
        )


@pytest.mark.parametrize(
    ("alpha", "beta", "kl"), [(0.3, 0.8, "batchmean"), (0.9, 0.2, "elementwise")]
)
def test_two_rounds_equal_plain_torch_modules_and_optimizers(alpha, beta, kl):
    """The same with nn.Module, torch.optim.SGD and F.kl_div, on whole parts so that the order of
    rows says nothing.
    """
    train = Train(batch_size=100, lr=0.1, local_steps=4, momentum=0.9, weight_decay=0.01)
    options = {"alpha": alpha, "beta": beta, "kl": kl, "auxiliary": "dnn:hidden=4"}
    with float64():
        federation, model = tiny(3), shared()
        loop = play(fml, federation, [model], train=train, options=options)
        private = loop.engine.model_of(0, "personal")
        w = play(fml, federation, [model], until=0, train=train, options=options).position.server.w
        own = [private.module(private.init(stream(0, "join", i))) for i in range(3)]
        sizes = torch.tensor([float(len(rows)) for rows in federation.train])
        for _ in range(2):
            memes = [model.module(w) for _ in own]
            for g, p, rows in zip(memes, own, federation.train, strict=True):
                x, y = federation.x[rows], federation.y[rows]
                steppers = [
                    torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
                    for net in (g, p)
                ]
                for _ in range(4):
                    z_g, z_p = g(x), p(x)
                    to_p = F.kl_div(
                        F.log_softmax(z_p, 1), F.softmax(z_g, 1).detach(), reduction="none"
                    )
                    to_g = F.kl_div(
                        F.log_softmax(z_g, 1), F.softmax(z_p, 1).detach(), reduction="none"
                    )
                    to_p, to_g = (
                        k.mean() if kl == "elementwise" else k.sum(1).mean() for k in (to_p, to_g)
                    )
                    loss_p = alpha * F.cross_entropy(z_p, y) + (1 - alpha) * to_p
                    loss_g = beta * F.cross_entropy(z_g, y) + (1 - beta) * to_g
                    for stepper, loss in zip(steppers, (loss_g, loss_p), strict=True):
                        stepper.zero_grad()
                        loss.backward()
                        stepper.step()
            states = [g.state_dict() for g in memes]
            w = Point(
                {
                    k: sum(n * s[k] for n, s in zip(sizes / sizes.sum(), states, strict=True))
                    for k in w.params
                }
            )
        wanted = {
            i: torch.cat([t.detach().flatten() for t in p.parameters()]) for i, p in enumerate(own)
        }
        assert_same(personal(loop), wanted)
        torch.testing.assert_close(flat(loop.position.server.w), flat(w), rtol=0, atol=1e-9)


def test_another_private_network_runs_and_learns():
    options = {"auxiliary": "dnn:hidden=8"}
    early, late = (
        play("fml", models=[shared()], rounds=12, until=n, options=options).evaluate()
        for n in (0, 12)
    )
    for view in ("personal", "global"):
        assert np.mean(late[view, "train", "loss"]) < 0.7 * np.mean(early[view, "train", "loss"])


def test_one_logit_means_two_classes():
    """Mutual learning of (z) with a sigmoid is that of (0, z) with a softmax, padded rows left
    out.
    """
    with float64():
        rng = torch.Generator().manual_seed(0)
        one = Model(lambda: nn.Linear(4, 1), task="binary")
        two = Model(lambda: nn.Linear(4, 2))
        w, m = (
            Point(
                {"weight": torch.randn(1, 4, generator=rng), "bias": torch.randn(1, generator=rng)}
            )
            for _ in range(2)
        )
        w2, m2 = (
            Point({k: torch.cat([torch.zeros_like(t), t]) for k, t in p.params.items()})
            for p in (w, m)
        )
        x, y = torch.randn(5, 4, generator=rng), torch.tensor([0, 1, 1, 0, 1])
        batch = Batch(x, y, torch.tensor([1.0, 1, 1, 0, 1]), torch.arange(5), torch.tensor(0))
        share = LossWeights(0.4, 0.6)
        of_one = build_mutual_gradients(one, one, share, share)(w, m, batch)
        of_two = build_mutual_gradients(two, two, share, share)(w2, m2, batch)
        for a, b in zip(of_one, of_two, strict=True):
            for k in a.params:
                torch.testing.assert_close(a.params[k], b.params[k][1:])


def test_bad_options_are_refused_in_one_line():
    for options, line in (
        ({"alpha": 1.5}, "alpha = 1.5"),
        ({"beta": -0.1}, "beta = -0.1"),
        ({"kl": "mean"}, "kl = 'mean': give batchmean or elementwise"),
    ):
        with pytest.raises(BadInput, match=line):
            fml(tiny_model(), Train(), **options)
    with pytest.raises(BadInput, match="no classes"):
        fml(Model(lambda: build_network("mean", (6,), 1), "squared", "mean"), Train())
