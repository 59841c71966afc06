"""Laws of FedTGP: the server descends on its contrastive loss, with the margin of its clients."""

import pytest
import torch

from coterie.methods.fedtgp import contrast, make_prototypes
from coterie.methods.prototypes import find_margin
from helpers.federations import TRAIN, assert_same, float64, personal, play, watched


def test_without_its_term_it_is_local_training():
    with float64():
        loop = play("fedtgp", rounds=3, options={"lam": 0, "predict": "head"})
        assert_same(personal(loop), personal(play("local", rounds=3)))


def test_the_loss_is_the_paper_s():
    with float64():
        generator = torch.Generator().manual_seed(0)
        params = play("fedtgp", until=0).position.server.more.params
        sent, classes = torch.randn(4, 5, generator=generator), torch.tensor([0, 2, 1, 2])
        made, delta, rows = make_prototypes(params), 0.7, []
        for c, j in zip(sent, classes.tolist(), strict=True):
            apart = torch.stack([(c - p).norm() for p in made])
            own = torch.exp(-(apart[j] + delta))
            others = sum(torch.exp(-apart[k]) for k in range(3) if k != j)
            rows.append(-torch.log(own / (own + others)))
        torch.testing.assert_close(contrast(params, sent, classes, delta), torch.stack(rows).mean())


@pytest.mark.parametrize(("tau", "wanted"), [(100.0, 4.0), (2.0, 2.0)])
def test_the_margin_is_the_largest_distance_to_the_nearest_centre(tau, wanted):
    """Centres 0, 1 and 5 on a line: their nearest are 1, 1 and 4 away."""
    rows = torch.tensor([[-1.0], [1.0], [1.0], [5.0]])
    assert find_margin(rows, torch.tensor([0, 0, 1, 2]), tau) == wanted
    assert find_margin(rows[:2], torch.tensor([0, 0]), tau) == 0


def test_the_server_takes_steps_of_sgd_on_all_that_was_sent():
    """One batch of all prototypes and three epochs: three steps by hand."""
    with float64():
        train, options = TRAIN._replace(batch_size=1000), {"server_epochs": 3}
        before = play("fedtgp", until=0, train=train, options=options).position.server.more.params
        loop, trips = watched("fedtgp", train=train, options=options)
        sent = trips[0][1].upload
        clients, classes = (sent.rows > 0).nonzero(as_tuple=True)
        rows = sent.features[clients, classes]
        delta = find_margin(rows, classes, 100.0)
        leaves = {k: a.clone().requires_grad_() for k, a in before.items()}
        move = torch.optim.SGD(leaves.values(), lr=train.lr)
        for _ in range(3):
            move.zero_grad()
            contrast(leaves, rows, classes, delta).backward()
            move.step()
        server = loop.position.server
        for k, a in leaves.items():
            torch.testing.assert_close(server.more.params[k], a.detach())
        torch.testing.assert_close(server.shared.means, make_prototypes(server.more.params))


def test_training_them_sets_prototypes_further_apart_than_averaging():
    near = {}
    for name, options in (("fedproto", {}), ("fedtgp", {"server_epochs": 200})):
        loop = play(name, rounds=1, options=options)
        means = loop.position.server.shared.means
        near[name] = float(torch.pdist(means).min())
    assert near["fedtgp"] > near["fedproto"]


def test_the_server_s_parameters_never_travel():
    _, trips = watched("fedtgp")
    assert trips[0][2].down == 5 * (4 * (3 * 5 + 3) + 8)
