"""Laws of FedPAC: the shares of heads minimize their bound, head and body descend in turn."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.method import Train
from coterie.methods.combination import choose_shares, minimize_on_simplex
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model, watched

WHOLE = Train(batch_size=1000, lr=0.1, local_epochs=2, momentum=0.5)


def test_shares_of_clients_that_are_alike_are_as_their_certainty():
    """No bias: the least variance of a weighted mean has weights 1 / v."""
    with float64():
        h, v = torch.ones(3, 2, 4), torch.tensor([1.0, 2.0, 4.0])
        wanted = (1 / v) / (1 / v).sum()
        torch.testing.assert_close(choose_shares(h, v), wanted.expand(3, 3))


def test_two_clients_share_as_their_distance_allows():
    """With distance D and variances v the other's share is v_1 / (v_1 + v_2 + D^2)."""
    with float64():
        h, v = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]]), torch.tensor([1.0, 2.0])
        found = choose_shares(h, v)
        torch.testing.assert_close(found[0, 1], torch.tensor(1.0 / (1 + 2 + 25)))
        torch.testing.assert_close(found[1, 0], torch.tensor(2.0 / (1 + 2 + 25)))


def test_a_client_far_from_all_others_keeps_its_head():
    h = torch.tensor([0.0, 0.01, 1e4])[:, None, None]
    found = choose_shares(h, torch.ones(3))
    assert found[2].tolist() == [0, 0, 1]
    assert found[0, 2] == 0
    assert found[0, 1] > 0.4


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_the_minimum_over_the_simplex(seed):
    """Where a share is positive its slope is the least of all (Karush, Kuhn, Tucker)."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 9))
    matrix = root.T @ root + np.diag(rng.random(9) * 0.1)
    a = minimize_on_simplex(matrix)
    slope = matrix @ a
    assert a.min() >= 0
    assert a.sum() == pytest.approx(1)
    assert slope[a > 1e-9] == pytest.approx(slope.min(), rel=1e-6)


def test_head_and_body_descend_in_turn_and_the_body_is_held_to_the_class_means():
    """One client, whose shares are 1: two rounds by hand."""
    with float64():
        federation, model = tiny(clients=1), tiny_model()
        options = {"lam": 3.0, "head_epochs": 3, "lr_head": 0.2}
        loop = play("fedpac", federation, [model], 2, train=WHOLE, options=options, until=0)
        module = model.build()
        nn.utils.vector_to_parameters(personal(loop)[0], module.parameters())
        x, y = federation.x[federation.train[0]], federation.y[federation.train[0]]
        means = None
        for _ in range(2):
            for part, steps, lr in ((module[2], 3, 0.2), (module[0], 2, 0.1)):
                move = torch.optim.SGD(part.parameters(), lr=lr, momentum=0.5)
                for _ in range(steps):
                    z = module[:2](x)
                    loss = nn.functional.cross_entropy(module[2](z), y)
                    if means is not None:
                        loss = loss + 3.0 * nn.functional.mse_loss(z, means[y])
                    module.zero_grad()
                    loss.backward()
                    move.step()
            z = module[:2](x).detach()
            means = torch.stack([z[y == j].mean(0) for j in range(3)])
        loop.go()
        assert_same(personal(loop), {0: torch.cat([p.flatten() for p in module.parameters()])})
        torch.testing.assert_close(loop.position.server.shared.means, means.nan_to_num())


def test_what_clients_say_of_their_features_is_under_the_received_body():
    with float64():
        federation, model = tiny(), tiny_model()
        body = model.build()
        start = play("fedpac", federation, [model], until=0)
        nn.utils.vector_to_parameters(personal(start)[0], body.parameters())
        _, trips = watched("fedpac", federation=federation, models=[model])
        sent = trips[0][1].upload
        for i, rows in enumerate(federation.train):
            z, y = body[:2](federation.x[rows]).detach(), federation.y[rows]
            h = torch.stack([z[y == j].sum(0) / len(y) for j in range(3)])
            v = (z.square().sum(1).mean() - h.square().sum()) / len(y)
            torch.testing.assert_close(sent.h[i], h)
            torch.testing.assert_close(sent.v[i], v)
            assert float(v) > 0


def test_heads_are_combined_by_the_shares_and_bodies_averaged():
    with float64():
        loop, trips = watched("fedpac")
        replies, server = trips[0][1], loop.position.server
        sent = replies.upload
        shares = choose_shares(sent.h, sent.v)
        assert (shares.diagonal() < 1).any()
        for k, heads in sent.head.params.items():
            torch.testing.assert_close(server.head.params[k], torch.tensordot(shares, heads, 1))
        for k, bodies in sent.body.params.items():
            torch.testing.assert_close(
                server.body.params[k], torch.tensordot(replies.weights, bodies, 1)
            )


def test_a_client_that_does_not_answer_keeps_its_head_at_the_server():
    loop = play("fedpac", rounds=2, until=1)
    before = loop.position.server.head.params["2.weight"].clone()
    loop.schedule = loop.schedule._replace(participation=0.4)
    loop.go(until=2)
    after = loop.position.server.head.params["2.weight"]
    assert sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)) == 2
