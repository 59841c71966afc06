"""Laws of kNN-Per: FedAvg without its memory, the votes of the nearest rows by hand, and shares
that are chosen on validation rows.
"""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.method import Batch
from coterie.networks.probabilities import Near, blend_classes, vote_nearest
from helpers.federations import TRAIN, assert_same, float64, personal, play, tiny, tiny_model


def test_what_travels_is_fedavg():
    with float64():
        loop, plain = play("knnper", rounds=3), play("fedavg", rounds=3)
        assert_same(personal(loop, "global"), personal(plain))
        own = play("knnper", rounds=3, options={"lam": 0.0}).evaluate()
        for part in ("train", "test"):
            wanted = plain.evaluate()["personal", part, "loss"]
            assert own["personal", part, "loss"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(("lam", "memory"), [(1.0, 100), (0.3, 100), (0.3, 6)])
def test_a_client_says_what_its_nearest_rows_and_the_common_model_say(lam, memory):
    """By sorting all distances; with a small memory every n / 6-th row is in it."""
    with float64():
        federation, model = tiny(), tiny_model()
        options = {"lam": lam, "memory": memory, "neighbours": 3, "reach": 0.7}
        loop = play("knnper", federation, [model], 3, options=options)
        whole = loop.engine.model_of(0, "personal")
        module = model.module(loop.position.server.w)
        for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
            for at, i in enumerate(chunk):
                rows = federation.train[i]
                if len(rows) > memory:
                    rows = rows[[j * len(rows) // memory for j in range(memory)]]
                x, near = federation.x[federation.test[i]], federation.x[rows]
                apart = torch.cdist(module[:2](x), module[:2](near))
                found, first = apart.sort(1)
                votes = (-found[:, :3] / 0.7).exp()
                hot = torch.nn.functional.one_hot(federation.y[rows], 3).double()
                said = (votes[..., None] * hot[first[:, :3]]).sum(1) / votes.sum(1, keepdim=True)
                wanted = lam * said + (1 - lam) * module(x).softmax(1)
                own = coterie.core.point.pick(views["personal"], at)
                torch.testing.assert_close(
                    whole.chances(own, batch_of(x)), wanted, atol=1e-9, rtol=1e-7
                )


def batch_of(x):
    n = len(x)
    return Batch(
        x, torch.zeros(n, dtype=torch.long), torch.ones(n), torch.arange(n), torch.tensor(0)
    )


def test_the_share_is_that_of_least_loss_on_validation_rows():
    with float64():
        federation = tiny(validation=9)
        fixed = [
            play("knnper", federation, options={"lam": level / 10}).evaluate()[
                "personal", "validation", "loss"
            ]
            for level in range(11)
        ]
        loop = play("knnper", federation)
        found = loop.evaluate()["personal", "validation", "loss"]
        assert found == pytest.approx(np.min(fixed, axis=0))


def test_clients_who_name_things_differently_are_told_apart():
    """FedAvg cannot be right for both groups; rows of one's own are."""
    federation = tiny(8, validation=12)
    loop, plain = (play(name, federation, rounds=10) for name in ("knnper", "fedavg"))
    own, common = (x.evaluate()["personal", "test", "accuracy"].mean() for x in (loop, plain))
    assert own > common + 0.2


def test_rows_that_are_none_do_not_vote_and_no_row_votes_twice():
    features = torch.tensor([[0.0], [0.0], [1.0], [5.0]])
    labels = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # the first is none
    votes = vote_nearest(torch.tensor([[0.0]]), features, labels, Near(2, 1.0))
    wanted = torch.tensor([1.0, torch.exp(torch.tensor(-1.0))])
    torch.testing.assert_close(votes[0], wanted / wanted.sum())
    every = vote_nearest(torch.tensor([[0.0]]), features, labels, Near(99, 1.0))
    assert every[0, 1] == pytest.approx(float((wanted[1] + 0.0067379) / (wanted.sum() + 0.0067379)))
    far = vote_nearest(torch.tensor([[4000.0]]), features, labels, Near(2, 1.0))
    assert torch.isfinite(far).all()


def test_one_output_tells_two_classes_apart():
    outputs, others = torch.tensor([[0.4]]), torch.tensor([[0.9, 0.1]])
    yes = torch.sigmoid(outputs[0, 0])
    found = torch.sigmoid(blend_classes(outputs, others, 0.25))
    assert float(found) == pytest.approx(float(0.75 * yes + 0.25 * 0.1))


def test_a_saved_memory_is_read_back(tmp_path):
    run = coterie.run(
        "knnper", dataset="digits", model="dnn", rounds=1, clients=3, memory=20, out=tmp_path / "r"
    )
    module = coterie.load_model(run.folder, 0)
    assert module.head.features.shape[0] == 20
    assert int(module.head.labels.sum()) == 20
    assert torch.isfinite(module(torch.zeros(2, 64))).all()


def test_without_a_choice_no_validation_rows_are_needed():
    assert (
        "validation"
        not in play("knnper", options={"lam": 0.5}, train=TRAIN).program[0].method.needs
    )
