"""Laws of FedProto: prototypes are class means, networks are held to them and may differ."""

import pytest
import torch
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model, watched

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)


def deep_model() -> Model:
    """Another network with five features."""
    return Model(
        lambda: nn.Sequential(
            nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)
        ),
        name="deep",
    )


def test_without_its_term_it_is_local_training():
    with float64():
        loop = play("fedproto", rounds=3, options={"lam": 0, "predict": "head"})
        assert_same(personal(loop), personal(play("local", rounds=3)))


def test_nothing_is_held_in_the_first_round_and_something_after():
    with float64():
        for rounds, same in ((1, True), (2, False)):
            held = personal(play("fedproto", rounds=rounds, options={"predict": "head"}))
            free = personal(play("local", rounds=rounds))
            assert all(torch.allclose(held[i], free[i]) for i in held) is same


@pytest.mark.parametrize("weighting", ["size", "equal"])
def test_common_prototypes_are_the_means_of_class_features(weighting):
    with float64():
        federation, model = tiny(), tiny_model()
        train = WHOLE._replace(weighting=weighting)
        loop = play("fedproto", federation, [model], 1, train=train, options={"predict": "head"})
        sums, mass = torch.zeros(3, 5), torch.zeros(3)
        for i, rows in enumerate(federation.train):
            own = model.build()
            nn.utils.vector_to_parameters(personal(loop)[i], own.parameters())
            z = own[:2](federation.x[rows]).detach()
            for j in range(3):
                mine = z[federation.y[rows] == j]
                weight = len(mine) if weighting == "size" else float(len(mine) > 0)
                sums[j] += weight * mine.mean(0) if len(mine) else 0
                mass[j] += weight
        shared = loop.position.server.shared
        torch.testing.assert_close(shared.means, sums / mass[:, None], rtol=1e-9, atol=1e-12)
        assert shared.known.tolist() == [1, 1, 1]


def test_a_step_descends_on_the_distance_to_the_prototypes():
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        options = {"lam": 3.0, "predict": "head"}
        loop = play("fedproto", federation, [model], 2, train=WHOLE, options=options, until=1)
        module, shared = model.build(), loop.position.server.shared
        nn.utils.vector_to_parameters(personal(loop)[0], module.parameters())
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        move = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        for _ in range(2):
            z = module[:2](x)
            loss = nn.functional.cross_entropy(module[2](z), y)
            move.zero_grad()
            (loss + 3.0 * nn.functional.mse_loss(z, shared.means[y])).backward()
            move.step()
        loop.go()
        assert_same(personal(loop), {0: torch.cat([p.flatten() for p in module.parameters()])})


def test_the_nearest_prototype_is_predicted():
    federation, model = tiny(), tiny_model()
    near = play("fedproto", federation, [model], rounds=4)
    own = play("fedproto", federation, [model], rounds=4, options={"predict": "head"})
    body, whole = model.build(), model.build()
    nn.utils.vector_to_parameters(personal(own)[2], body.parameters())
    nn.utils.vector_to_parameters(personal(near)[2], whole.parameters())
    x = torch.randn(50, 6)
    apart = torch.cdist(body[:2](x), near.position.server.shared.means)
    assert torch.equal(whole(x).argmax(1), apart.argmin(1))
    torch.testing.assert_close(
        whole(x).softmax(1), (-apart.square()).softmax(1), rtol=1e-4, atol=1e-5
    )


def test_a_class_that_nobody_has_is_never_predicted():
    federation = tiny()
    y = torch.where(federation.y == 2, 1, federation.y)
    loop = play("fedproto", federation._replace(y=y), rounds=3)
    assert loop.position.server.shared.known.tolist() == [1, 1, 0]
    module = tiny_model().build()
    nn.utils.vector_to_parameters(personal(loop)[0], module.parameters())
    assert (module(torch.randn(99, 6)).argmax(1) < 2).all()


def test_networks_that_differ_share_prototypes_if_their_features_are_as_many():
    loop = play("fedproto", models=[tiny_model(), deep_model()], rounds=8)
    late = loop.evaluate()["personal", "train", "accuracy"].mean()
    assert late > 0.8
    with pytest.raises(BadInput, match=r"different numbers of them \(5 of tiny-5, 4 of tiny-4\)"):
        play("fedproto", models=[tiny_model(), tiny_model(4)])


def test_only_prototypes_travel():
    _, trips = watched("fedproto")
    _, replies, traffic = trips[0]
    assert traffic.down == 5 * (4 * (3 * 5 + 3) + 8)  # and the seed
    assert [tuple(a.shape) for a in replies.upload] == [(5, 3, 5), (5, 3)]


def test_two_classes_may_share_one_output():
    federation = tiny()
    federation = federation._replace(y=torch.where(federation.y == 2, 1, federation.y), classes=2)
    model = Model(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)), "binary", "one"
    )
    loop = play("fedproto", federation, [model], rounds=6)
    assert loop.evaluate()["personal", "train", "accuracy"].mean() > 0.8
