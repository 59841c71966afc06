"""Laws of User-Centric FL: the weights W of equation (6), the streams, and what is mixed and
broadcast.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.method import Replies, Train
from coterie.core.model import Model
from coterie.core.point import Vector, stack, tree_map
from coterie.methods import streams as ucfl_streams
from coterie.methods.gradient_spread import Upload
from coterie.methods.mixing import Mixing
from coterie.methods.streams import Server
from coterie.methods.ucfl import find_rows, find_sigma, ucfl
from coterie.results.metric_table import values_of
from helpers.federations import (
    SEQUENTIAL,
    STACKED,
    TRAIN,
    assert_same,
    float64,
    given,
    personal,
    play,
    tiny,
    tiny_model,
)


def rows(n, seed=0, turn=0, features=6):
    """Three clear classes; `turn` renames them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(3, features)) * 2
    labels = rng.integers(0, 3, n)
    x = torch.as_tensor(
        centres[labels] + rng.normal(size=(n, features)), dtype=torch.get_default_dtype()
    )
    return x, torch.as_tensor((labels + turn) % 3)


def repeated(times=(1, 2, 3)):
    """The same rows, held once, twice and three times."""
    x, y = rows(12)
    return given([(x.repeat(r, 1), y.repeat(r)) for r in times])


def opposed(n=120, clients=6):
    """Two groups whose labels are turned against each other."""
    return given(
        [rows(n, i, i % 2) for i in range(clients)], groups=[i % 2 for i in range(clients)]
    )


def similar(federation, seed=0, model=None, settings=STACKED, **options):
    """The server after the similarity round."""
    loop = play(
        "ucfl",
        federation,
        [model] if model else None,
        until=1,
        seed=seed,
        settings=settings,
        options=options,
    )
    return loop.position.server


def collaboration(g, variance, n):
    """W from gradients, sigma^2 and sizes."""
    return find_rows(g, find_sigma(variance), n.double(), 0).weights


def group_rows(weights, streams):
    """The group of every row of W, and the centroids."""
    n = torch.ones(len(weights))
    rng = np.random.default_rng(0)
    group, mix = ucfl_streams.group_rows(Mixing(weights), streams, n > 0, n, rng)
    return group, mix.weights


# W


@pytest.mark.parametrize("batches", [2.0, 2.5, 5.0, 10.0])
def test_identical_data_give_rows_weighted_by_size(batches):
    with float64():
        server = similar(repeated(), batches=batches)
        wanted = torch.tensor([1, 2, 3]) / 6.0
        torch.testing.assert_close(
            server.weights.weights, wanted.repeat(3, 1), rtol=1e-9, atol=1e-9
        )
        assert (server.sigma > 0).all()


@pytest.mark.parametrize("batches", [0.0, 2.0, 2.5, 5.0, 10.0])
def test_identical_distributions_weigh_a_peer_by_the_number_of_batches(batches):
    """w_ij / w_ii = exp(-1 / (K - 1)) in the mean, for rows of one distribution and equal sizes; by
    the rows of a client K - 1 is 300 / 150."""
    model = Model(lambda: nn.Linear(60, 10))
    factors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        clients = [
            (torch.as_tensor(rng.normal(size=(300, 60))), torch.as_tensor(rng.integers(0, 10, 300)))
            for _ in range(6)
        ]
        federation = given([(x.float(), y) for x, y in clients], classes=10)
        options = {"batches": batches} if batches else {"batch_rows": 150}
        weights = similar(federation, seed, model, **options).weights.weights
        peers = weights / weights.diagonal()[:, None]
        factors.append(peers[~torch.eye(6, dtype=torch.bool)])
    found, wanted = float(torch.cat(factors).mean()), math.exp(-1 / ((batches or 3.0) - 1))
    assert found == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("settings", [STACKED, SEQUENTIAL])
def test_weights_are_those_of_the_full_gradients(settings):
    """(6) from gradients that plain autograd finds at the common start."""
    with float64():
        federation, model = tiny(), tiny_model(dropout=0.5)
        loop = play("ucfl", federation, [model], until=0, settings=settings)
        module = model.module(loop.payload()(0))
        loop.go(until=1)
        server = loop.position.server
        gradients = []
        for part in federation.train:
            module.zero_grad()
            nn.functional.cross_entropy(module(federation.x[part]), federation.y[part]).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        n, sigma = torch.as_tensor(federation.sizes, dtype=torch.float64), server.sigma
        for i, g in enumerate(gradients):
            row = torch.stack(
                [
                    n[j] * torch.exp(-(g - h).square().sum() / (2 * sigma[i] * sigma[j]))
                    for j, h in enumerate(gradients)
                ]
            )
            torch.testing.assert_close(
                server.weights.weights[i], row / row.sum(), rtol=1e-9, atol=1e-12
            )


def test_sigma_is_the_spread_of_gradients_on_subsets():
    """Where a batch is one row, sigma^2 is a mean of squared distances between a row's gradient and
    the mean gradient.
    """
    with float64():
        x = torch.eye(6)[:2].repeat_interleave(
            4, 0
        )  # eight rows of two kinds, so that every distance is the same
        model = Model(lambda: nn.Linear(6, 1, bias=False), task="squared")
        loop = play(
            "ucfl",
            given([(x, torch.zeros(8))], classes=0),
            [model],
            until=0,
            options={"batches": 8.0},
        )
        w = loop.payload()(0).params["weight"][0]
        loop.go(until=1)
        apart = (x[0] * w[0] - x[-1] * w[1]) / 2
        torch.testing.assert_close(
            loop.position.server.sigma, apart.norm()[None], rtol=1e-9, atol=1e-12
        )


def test_weights_do_not_depend_on_units():
    """Neither a common factor of the sizes nor one of gradients and their spread changes W."""
    rng = np.random.default_rng(0)
    g, variance, n = (torch.as_tensor(rng.random(shape)) for shape in ((5, 30), 5, 5))
    weights = collaboration(g, variance, n)
    torch.testing.assert_close(weights.sum(1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(collaboration(g, variance, 1e-300 * n), weights)
    torch.testing.assert_close(collaboration(1e6 * g, 1e12 * variance, n), weights)
    assert torch.equal(collaboration(1e9 * g, variance, n), torch.eye(5, dtype=torch.float64))


def test_a_sigma_of_zero_counts_as_the_smallest_other_one():
    g, n = torch.eye(3), torch.ones(3)
    found = collaboration(g, torch.tensor([0.0, 0.5, 2.0]), n)
    assert torch.equal(found, collaboration(g, torch.tensor([0.5, 0.5, 2.0]), n))
    nobody = collaboration(torch.stack([g[0], g[0], g[1]]), torch.zeros(3), n)
    torch.testing.assert_close(
        nobody, torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64)
    )


def test_opposed_groups_are_found():
    """Labels turned against each other: W keeps to the group, and so do two streams and those of
    the silhouette.
    """
    federation = opposed()
    group = torch.as_tensor(federation.groups)
    same = group[:, None] == group
    for streams in (2, -1):
        server = similar(federation, streams=streams, batches=2.5)
        assert (server.weights.weights * same).sum(1).min() > 0.99
        assert torch.equal(server.stream[:, None] == server.stream, same)
        assert len(server.mix.weights) == 2


# Streams


def test_a_stream_mixes_by_the_mean_row_of_its_members():
    weights = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.0, 0.1, 0.9]])
    group, mix = group_rows(weights, 2)
    assert group[0] == group[1] != group[2]
    torch.testing.assert_close(mix[group[0]], torch.tensor([0.7, 0.3, 0.0]))
    torch.testing.assert_close(mix[group[2]], weights[2])


@pytest.mark.parametrize("streams", [3, -1])
def test_equal_rows_need_one_stream(streams):
    group, mix = group_rows(torch.full((4, 4), 0.25), streams)
    assert group.tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(mix, torch.full((1, 4), 0.25))


def test_one_stream_of_rows_weighted_by_size_is_fedavg():
    with float64():
        train = Train(batch_size=4, lr=0.1, local_epochs=2, momentum=0.9, weight_decay=0.01)
        federation = repeated()
        one = play("ucfl", federation, train=train, options={"streams": 1}, rounds=3)
        assert_same(personal(one), personal(play("fedavg", federation, train=train, rounds=3)))


def test_without_answers_before_training_it_is_fedavg():
    """Nobody's gradient arrives: every client still has FedAvg's model."""
    with float64():
        loop = play("ucfl", until=0)
        loop.schedule = loop.schedule._replace(dropout_clients=0.999999)
        loop.go(until=1)
        loop.schedule = loop.schedule._replace(dropout_clients=0.0)
        loop.go()
        assert_same(personal(loop), personal(play("fedavg")))


def test_who_did_not_answer_keeps_fedavgs_row_and_is_in_no_other():
    loop = play("ucfl", until=0)
    before, compare = loop.position.server, loop.program[0].method.round[0].receive
    g = stack(
        [Vector({k: torch.randn(s) for k, s in tiny_model().shapes.items()}) for _ in range(3)]
    )
    ids = torch.tensor([0, 2, 3])
    replies = Replies(ids, Upload(g, torch.ones(3)), before.sizes[ids])
    after = compare(before, replies, np.random.default_rng(0))
    weights = after.weights.weights
    for i in (1, 4):
        torch.testing.assert_close(weights[i], before.sizes / before.sizes.sum())
        assert not weights[ids, i].any()
    torch.testing.assert_close(weights.sum(1), torch.ones(5))


# Training


def mixed(server, ids, seed=0):
    """The server after a round in which these clients sent random models, and those models."""
    receive = ucfl(tiny_model(), TRAIN)[1].method.round[0].receive
    rng = torch.Generator().manual_seed(seed)
    sent = tree_map(lambda a: torch.randn((len(ids), *a.shape[1:]), generator=rng), server.models)
    replies = Replies(torch.tensor(ids), sent, torch.ones(len(ids)))
    return receive(server, replies, np.random.default_rng(0)), sent


def hand_made(stream, mix):
    """A server whose models are all different."""
    models = stack([tiny_model().start(k) for k in range(len(mix))])
    n = mix.shape[1]
    weights, ones = Mixing(torch.eye(n)), torch.ones(n)
    return Server(models, torch.tensor(stream), Mixing(mix), weights, ones, ones)


def test_every_client_gets_the_mixture_of_its_row():
    mix = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), 1)
    after, sent = mixed(hand_made([0, 1, 2, 3], mix), [0, 1, 2, 3])
    for name, a in after.models.params.items():
        for i in range(4):
            torch.testing.assert_close(
                a[i], sum(mix[i, j] * sent.params[name][j] for j in range(4))
            )


def test_absent_clients_keep_their_model_and_rows_are_shared_among_the_others():
    mix = torch.softmax(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), 1)
    server = hand_made([0, 1, 2, 3], mix)
    after, sent = mixed(server, [1, 3])
    for name, a in after.models.params.items():
        assert torch.equal(a[0], server.models.params[name][0])
        assert torch.equal(a[2], server.models.params[name][2])
        for i in (1, 3):
            total = mix[i, 1] + mix[i, 3]
            torch.testing.assert_close(
                a[i], (mix[i, 1] * sent.params[name][0] + mix[i, 3] * sent.params[name][1]) / total
            )


def test_a_stream_lives_while_a_member_is_there():
    server = hand_made([0, 0, 1], torch.tensor([[0.4, 0.4, 0.2], [0.1, 0.3, 0.6]]))
    after, sent = mixed(server, [1])
    for name, a in after.models.params.items():
        torch.testing.assert_close(a[0], sent.params[name][0])
        assert torch.equal(a[1], server.models.params[name][1])


@pytest.mark.parametrize(("streams", "distinct"), [(0, 6), (2, 2), (1, 1)])
def test_a_stream_is_broadcast_once(streams, distinct):
    loop = play("ucfl", opposed(20), rounds=2, options={"streams": streams})
    size, table = 4 * tiny_model().size, loop.table.whole()

    def cost(metric, done):
        return values_of(table, metric, "", "", done)[1].item()

    assert [cost("bytes_broadcast", done) for done in (1, 2, 3)] == [
        size,
        distinct * size,
        distinct * size,
    ]
    assert [cost("bytes_down", done) for done in (1, 2)] == [6 * size, 6 * size]
    assert [cost("bytes_up", done) for done in (1, 2)] == [6 * (size + 4), 6 * size]


def test_a_newcomer_has_the_mean_model_and_changes_nobody_elses():
    mix = torch.softmax(torch.randn(2, 3, generator=torch.Generator().manual_seed(1)), 1)
    server = hand_made([0, 0, 1], mix)
    method = ucfl(tiny_model(), TRAIN)[1].method
    wider = method.admit(server)
    rng = np.random.default_rng(0)
    for name, a in method.round[0].send(wider, 3, rng).params.items():
        torch.testing.assert_close(
            a, (2 * server.models.params[name][0] + server.models.params[name][1]) / 3
        )
    torch.testing.assert_close(wider.mix.weights.sum(1), torch.ones(3))
    torch.testing.assert_close(wider.weights.weights.sum(1), torch.ones(4))
    after, sent = mixed(wider, [0, 1, 2, 3])
    for name, a in after.models.params.items():
        torch.testing.assert_close(a[2], sent.params[name].mean(0))
        torch.testing.assert_close(a[0], sum(mix[0, j] * sent.params[name][j] for j in range(3)))


def test_gradients_of_a_network_with_batchnorm_are_sums_over_rows():
    """Running statistics, not those of a batch: the same rows in other batches give the same
    gradient.
    """
    with float64():
        server = similar(
            repeated((1, 30)), model=tiny_model(norm=True)
        )  # 12 rows in one batch, 360 in two
        torch.testing.assert_close(
            server.weights.weights,
            (torch.tensor([1.0, 30]) / 31).repeat(2, 1),
            rtol=1e-9,
            atol=1e-9,
        )


def test_a_run_says_with_a_number_when_its_weights_are_flat_or_each_client_is_alone():
    """Alike clients share with all where K is large, opposed ones with their group, and all with
    nobody where K is near 1.
    """

    def said(federation, **options):
        found = []
        loop = play("ucfl", federation, until=0, options=options)
        loop.go(lambda _, report: found.extend(report.said), until=1)
        return " ".join(found)

    alike = given([rows(60, i) for i in range(6)])
    assert "W is flat, its largest weight is 1.0/N and 6.0 of 6" in said(alike, batches=30.0)
    assert said(opposed(), batches=3.0) == said(opposed(), batches=3.0, peers=3) == ""
    assert "weight on itself is 1.00 in the mean" in said(alike, batches=1.01)
    assert "weight on itself is 1.00 in the mean" in said(alike, batches=1.01, peers=3)


def test_impossible_options_are_refused():
    with pytest.raises(BadInput, match=r"batch_rows = 5 .*batches = 3 gives it: leave out one"):
        ucfl(tiny_model(), TRAIN, batches=3.0, batch_rows=5)
    with pytest.raises(BadInput, match=r"batches = 1.*: .* above 1"):
        ucfl(tiny_model(), TRAIN, batches=1.0)
    with pytest.raises(BadInput, match="streams = -2"):
        ucfl(tiny_model(), TRAIN, streams=-2)
    with pytest.raises(BadInput, match="streams = 9, but there are 5 clients"):
        play("ucfl", options={"streams": 9})
