"""Laws of the clustered baselines: CFL, Oracle, IFCA."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Replies, Train
from coterie.core.point import Point, pick, stack, tree_map
from coterie.experiment.schedule import Schedule
from coterie.methods.cfl import bisect_updates, cfl
from coterie.methods.ifca import IFCAUpload, ifca
from coterie.methods.oracle import average_clusters
from coterie.results.metric_table import values_of
from coterie.running.loop import facts_of
from helpers.federations import (
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

WHOLE = Train(batch_size=1000, lr=0.3, local_epochs=5)  # the order of rows does not matter


def turned(groups, each=3, n=40, seed=0):
    """Clients of some groups; a group has its own names for the three classes."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 6)) * 2
    clients = []
    for i in range(groups * each):
        labels = rng.integers(0, 3, n)
        x = torch.as_tensor(
            centres[labels] + rng.normal(size=(n, 6)), dtype=torch.get_default_dtype()
        )
        clients.append((x, torch.as_tensor((labels + i // each) % 3)))
    return given(clients, groups=[i // each for i in range(groups * each)])


def same_partition(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    return torch.equal(a[:, None] == a, b[:, None] == b)


# CFL


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_cfl_finds_the_groups_and_no_others(groups):
    federation = turned(groups)
    loop = play("cfl", federation, train=WHOLE, rounds=60, options={"after": 5})
    assert same_partition(loop.position.server.cluster, federation.groups)
    accuracy = loop.evaluate()["personal", "train", "accuracy"]
    assert accuracy.min() > 0.9


def test_cfl_that_never_splits_is_fedavg_with_equal_weights():
    with float64():
        train = TRAIN._replace(weighting="equal", momentum=0.5)
        wanted = personal(play("fedavg", train=train, rounds=3))
        assert_same(personal(play("cfl", train=TRAIN._replace(momentum=0.5), rounds=3)), wanted)


def heard(server, ids, models, method):
    """The server after these clients sent these models."""
    replies = Replies(torch.tensor(ids), stack(models), torch.ones(len(ids)))
    return method.round[0].receive(server, replies, np.random.default_rng(0))


def opposite(model, clients, length=1.0):
    """Updates of the given length, one way for the first half of the clients and the other way for
    the rest.
    """
    w = model.start(0)
    way = tree_map(lambda a: torch.ones_like(a) / model.size**0.5, w) - tree_map(
        torch.zeros_like, w
    )
    return w, [w + (length if i < clients / 2 else -length) * way for i in range(clients)]


def fresh(method, clients, w):
    """The server before the first round, standing at w."""
    known = facts_of(tiny(clients), [tiny_model()], np.zeros(clients, dtype=int), Schedule())
    return method.init(np.random.default_rng(0), known)._replace(models=stack([w]))


def test_cfl_splits_only_when_still_and_pulled_and_late():
    """|mean dW| < eps1, max |dW| > eps2, more than `after` rounds, more than two members: each
    alone forbids the split.
    """
    model = tiny_model()
    for clients, after, eps1, eps2, splits in [
        (4, 0, 0.4, 0.9, True),
        (4, 0, 0.4, 1.1, False),  # nobody pulls enough
        (4, 1, 0.4, 0.9, False),  # too early
        (2, 0, 0.4, 0.9, False),  # too few
        (6, 0, 1e-9, 0.9, False),  # moves still
    ]:
        method = cfl(model, TRAIN, eps1, eps2, after, relative=False)
        w, models = opposite(model, clients)
        if eps1 < 1e-3:
            models[0] = models[-1]
        server = heard(fresh(method, clients, w), list(range(clients)), models, method)
        assert (len(server.cluster.unique()) == 2) is splits
        if splits:
            assert same_partition(server.cluster, [0, 0, 1, 1])
            for i in range(clients):  # w + mean dW of its half
                mine = pick(server.models, int(server.cluster[i]))
                torch.testing.assert_close(mine.params, models[i].params)


def test_cfl_does_not_split_before_every_member_has_reported():
    model = tiny_model()
    method = cfl(model, TRAIN, 0.4, 0.9, 0, relative=False)
    w, models = opposite(model, 4)
    server = fresh(method, 4, w)
    server = heard(server, [0, 2], [models[0], models[2]], method)
    assert not server.cluster.any()
    server = heard(server, [0, 3], [models[0], models[3]], method)
    assert not server.cluster.any()
    server = heard(server, [1, 2], [models[1], models[2]], method)
    assert same_partition(server.cluster, [0, 0, 1, 1])
    assert not server.reported.any()  # the halves start anew


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_cfl_in_relative_units_does_not_depend_on_the_length_of_updates(scale):
    """Clients pull apart by 2 while all move along together: by 1, then less; the split comes at
    the first below 0.4 of 1.
    """
    model = tiny_model()
    method = cfl(model, TRAIN, after=0)
    w, models = opposite(model, 4, 2 * scale)
    server = fresh(method, 4, w)
    shape = tree_map(torch.zeros_like, w)
    along = (
        Point(shape.params | {"0.bias": torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0]) / 2}) - shape
    )  # across the pull
    for shift, clusters in [(1.0, 1), (0.8, 1), (0.5, 1), (0.3, 2)]:
        here = pick(server.models, 0)
        server = heard(
            server, [0, 1, 2, 3], [here + (m - w) + shift * scale * along for m in models], method
        )
        assert len(server.cluster.unique()) == clusters
    assert same_partition(server.cluster, [0, 0, 1, 1])


def test_cut_is_complete_linkage_on_angles():
    """Lengths do not count, and the cut separates the ways even when one side is small."""
    way = torch.tensor([[1.0, 0.1], [5.0, 0.3], [0.2, 0.01], [-3.0, 0.2]])
    assert same_partition(bisect_updates(way), [0, 0, 0, 1])
    angles = (
        torch.tensor([0.0, 40.0, 80.0, 130.0]) * torch.pi / 180
    )  # a chain: complete linkage halves it, single does not
    chain = torch.stack([angles.cos(), angles.sin()], 1)
    assert same_partition(bisect_updates(chain), [0, 0, 1, 1])


# Oracle


def test_oracle_is_fedavg_within_each_group():
    with float64():
        whole = turned(2, each=2)
        for first in (
            0,
            1,
        ):  # the group that comes first keeps its clients' numbers, and so their batches
            order = sorted(range(4), key=lambda i: whole.groups[i] != first)
            both = whole._replace(train=[whole.train[i] for i in order], groups=whole.groups[order])
            alone = both._replace(
                **{
                    part: getattr(both, part)[:2]
                    for part in ("train", "validation", "test", "names")
                },
                groups=both.groups[:2],
            )
            of_group = personal(play("oracle", both, train=TRAIN._replace(momentum=0.9)))
            wanted = personal(play("fedavg", alone, train=TRAIN._replace(momentum=0.9)))
            assert_same({i: of_group[i] for i in (0, 1)}, wanted)


def test_oracle_needs_groups():
    with pytest.raises(BadInput, match="groups"):
        play("oracle", tiny(groups=1))


def test_a_cluster_is_averaged_by_its_own_weights_and_stays_when_nobody_answers():
    models = Point({"w": torch.tensor([[0.0], [10.0], [20.0]])})
    uploads = Point({"w": torch.tensor([[1.0], [2.0], [4.0]])})
    after = average_clusters(
        models, uploads, torch.tensor([2, 0, 0]), torch.tensor([0.2, 0.2, 0.6])
    )
    torch.testing.assert_close(after.params["w"], torch.tensor([[3.5], [10.0], [1.0]]))


def test_one_broadcast_a_group():
    loop = play("oracle", turned(3), rounds=1)
    assert (
        values_of(loop.table.whole(), "bytes_broadcast", "", "", 1)[1] == 3 * 4 * tiny_model().size
    )


# IFCA


def test_ifca_with_one_cluster_is_fedavg():
    with float64():
        train = WHOLE._replace(momentum=0.5)
        assert_same(
            personal(play("ifca", train=train, options={"clusters": 1})),
            personal(play("fedavg", train=train)),
        )


def test_ifca_takes_the_model_of_least_training_loss():
    """Both for training and for use; checked against the loss of every model on every client."""
    federation = turned(2)
    loop = play("ifca", federation, rounds=1, options={"clusters": 3}, until=0)
    models = loop.position.server.models
    losses = torch.stack([loss(federation, pick(models, k)) for k in range(3)])
    loop.go()
    assert torch.equal(loop.position.server.cluster, losses.argmin(0))
    after = loop.position.server.models
    losses = torch.stack([loss(federation, pick(after, k)) for k in range(3)])
    measured = loop.evaluate()["personal", "train", "loss"]
    np.testing.assert_allclose(measured, losses.amin(0).numpy(), rtol=1e-5)


def loss(federation, point):
    """Mean training loss of one model on every client."""
    module = tiny_model().module(point)
    with torch.no_grad():
        per_row = torch.nn.functional.cross_entropy(
            module(federation.x), federation.y, reduction="none"
        )
    return torch.stack([per_row[rows].mean() for rows in federation.train])


def test_ifca_finds_the_groups():
    """From models that lean to one client of each group; from a worse start all may crowd in one
    cluster.
    """
    federation = turned(2)
    alone = play("local", federation, rounds=1).engine.states[0].gather([0, 5])
    loop = play("ifca", federation, train=WHOLE, rounds=10, until=0)
    loop.position = loop.position._replace(server=loop.position.server._replace(models=alone))
    loop.go()
    assert same_partition(loop.position.server.cluster, federation.groups)
    assert loop.evaluate()["personal", "train", "accuracy"].min() > 0.9


def test_ifca_sends_all_models_and_hears_one_and_its_number():
    loop = play("ifca", rounds=1, options={"clusters": 3})
    size, table = 4 * tiny_model().size, loop.table.whole()
    assert values_of(table, "bytes_down", "", "", 1)[1] == 5 * 3 * size
    assert values_of(table, "bytes_broadcast", "", "", 1)[1] == 3 * size
    assert values_of(table, "bytes_up", "", "", 1)[1] == 5 * (size + 8)


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (ifca, {"clusters": 0}, "clusters = 0"),
        (cfl, {"eps1": 0.0}, "eps1 = 0"),
        (cfl, {"after": -1}, "after = -1"),
    ],
)
def test_impossible_options_are_refused(build, options, message):
    with pytest.raises(BadInput, match=message):
        build(tiny_model(), TRAIN, **options)


@pytest.mark.parametrize(("name", "cluster"), [("cfl", 0), ("oracle", 1), ("ifca", -1)])
def test_a_newcomer_finds_room(name, cluster):
    """In the largest cluster, or, with IFCA, wherever it finds the least loss."""
    federation = turned(2)._replace(groups=np.array([0, 1, 1, 1, 1, 0]))
    loop = play(name, federation, rounds=1)
    wider = loop.program[0].method.admit(loop.position.server)
    assert wider.cluster.tolist() == [*loop.position.server.cluster.tolist(), cluster]
    payload = loop.program[0].method.round[0].send(wider, 6, np.random.default_rng(0))
    after = loop.program[0].method.round[0].receive
    upload = (
        stack([payload])
        if name != "ifca"
        else IFCAUpload(stack([pick(payload, 1)]), torch.tensor([1]))
    )
    server = after(
        wider, Replies(torch.tensor([6]), upload, torch.ones(1)), np.random.default_rng(0)
    )
    assert len(server.cluster) == 7


def test_clusters_are_written_down():
    for name in ("cfl", "oracle", "ifca"):
        notes = play(name, turned(2), rounds=1, settings=STACKED).server_notes()
        assert notes["cluster"].shape == (6,)
