"""Laws of methods over few peers: equal to the exact ones where all are peers, near them where few
are, and refused where even that does not fit.
"""

from functools import partial

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Replies, Train
from coterie.core.point import Point, mean, stack
from coterie.core.robust import build_average
from coterie.core.tree import load_tree, save_tree
from coterie.methods import bounds, knowledge, mixing, peers
from coterie.methods.cfl import bisect_bundles, bisect_updates
from coterie.methods.distillation import DistillationServer as Said
from coterie.methods.fedamp import attend_alike, attend_near
from coterie.methods.fedfomo import FedFomoServer, choose_offers
from coterie.methods.knowledge import Knowledge
from coterie.methods.last_models import LastModels
from coterie.methods.mixing import FREE, Mixing
from coterie.methods.peers import (
    compare_cosines,
    compare_distances,
    find_nearest,
    measure_squares,
    sketch,
)
from coterie.methods.registry import METHODS
from coterie.methods.streams import average_few, group_rows
from coterie.methods.ucfl import find_rows, find_sigma
from helpers.federations import (
    SEQUENTIAL,
    STACKED,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
)

SPARSE = {  # method: the option that keeps few, and how many
    "ucfl": ("peers", 2),
    "fedamp": ("peers", 2),
    "heurfedamp": ("peers", 2),
    "fedfomo": ("peers", 2),
    "ktpfl": ("peers", 2),
    "ktpfl-h": ("peers", 2),
    "cfl": ("bundles", 3),
}
over_few = pytest.mark.parametrize("name", SPARSE)


def cloud(n=40, d=300, groups=4, spread=0.05, seed=0):
    """Rows in groups, and the group of each."""
    rng = torch.Generator().manual_seed(seed)
    group = torch.arange(n) % groups
    centres = torch.randn(groups, d, generator=rng)
    return centres[group] + spread * torch.randn(n, d, generator=rng), group


def sparse(name):
    option, count = SPARSE[name]
    return {option: count} | ({"after": 0, "eps1": 1e5, "eps2": 1e-5} if name == "cfl" else {})


# Finding peers


def test_sketches_keep_distances():
    rows, _ = cloud(spread=1.0)
    close = torch.cdist(sketch([rows[:, :100], rows[:, 100:]]), sketch([rows]))
    whole = torch.cdist(rows, rows)
    apart = ~torch.eye(40, dtype=torch.bool)
    assert (close[apart] / whole[apart] - 1).abs().max() < 0.4
    assert (close[apart] / whole[apart]).mean() == pytest.approx(1, abs=0.05)


def test_short_rows_are_their_own_sketch():
    rows, _ = cloud(d=64)
    assert torch.equal(sketch([rows]), rows)


@pytest.mark.parametrize("exact", [20_000, 10])
def test_peers_are_of_the_own_group_and_never_oneself(monkeypatch, exact):
    """By all pairs, and by groups of sketches."""
    monkeypatch.setattr(peers, "EXACT", exact)
    rows, group = cloud(400, groups=8)
    points = sketch([rows])
    ids, there = find_nearest(points, points, torch.arange(400), 20)
    assert there.all()
    assert (group[ids] == group[:, None]).all()
    assert not (ids == torch.arange(400)[:, None]).any()
    assert all(len(row.unique()) == 20 for row in ids)


def test_groups_of_sketches_find_nearly_all_that_all_pairs_find(monkeypatch):
    points = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    everyone = torch.arange(3000)
    whole = find_nearest(points, points, everyone, 10).ids
    monkeypatch.setattr(peers, "EXACT", 100)
    found = find_nearest(points, points, everyone, 10).ids
    shared = (whole[:, :, None] == found[:, None]).any(2).double().mean()
    assert shared > 0.6


def test_there_are_no_more_peers_than_others():
    points = cloud(3)[0]
    ids, there = find_nearest(points, points, torch.arange(3), 9)
    assert ids.shape == (3, 3)
    assert there.sum(1).tolist() == [2, 2, 2]
    assert find_nearest(points, points[:0], torch.full((3,), -1), 9).ids.shape == (3, 0)


def test_blocks_change_nothing(monkeypatch):
    rows, _ = cloud()
    ids = find_nearest(rows, rows, torch.arange(40), 5).ids
    even = Mixing(torch.full((40, 5), 0.2), ids)
    whole = measure_squares([rows], ids), even.mix_rows(rows)
    monkeypatch.setattr(peers, "BLOCK", 1)
    assert torch.equal(find_nearest(rows, rows, torch.arange(40), 5).ids, ids)
    again = measure_squares([rows], ids), even.mix_rows(rows)
    for a, b in zip(whole, again, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(again[1], rows[ids].mean(1))


# Methods: where all others are peers, nothing changes


@over_few
def test_where_all_others_are_peers_it_is_the_method_to_the_bit(name):
    option = SPARSE[name][0]
    exact = play(name, tiny(6), rounds=3, participation=4)
    for count in (5, 900) if option == "peers" else (6, 900):
        mine = play(name, tiny(6), rounds=3, participation=4, options={option: count})
        assert_same(personal(mine), personal(exact), 0.0)


def test_rows_of_ucfl_over_all_others_are_those_of_w():
    with float64():
        g, _ = cloud(12, spread=0.5)
        variance, n = torch.rand(12) * 300, torch.arange(1.0, 13)
        variance[3] = 0
        sigma = find_sigma(variance)
        few, whole = (find_rows(g.double(), sigma, n, m) for m in (11, 0))
        torch.testing.assert_close(few.to_matrix(12), whole.weights)


@pytest.mark.parametrize("known", [7, 10])
def test_attention_over_all_others_is_that_of_fedamp(known):
    with float64():
        w, heard = cloud(10, spread=0.3)[0].double(), torch.arange(10) < known
        models = Point({"a": w[:, :120].reshape(10, 6, 20), "b": w[:, 120:]})
        near, all_near = (compare_distances(models, heard, m) for m in (9, 0))
        for alpha in (0.01, 1e4):
            xi, used = attend_near(all_near, alpha, 40.0)
            few, mine = attend_near(near, alpha, 40.0)
            torch.testing.assert_close(few.to_matrix(10), xi.weights)
            assert mine == pytest.approx(used)
        few, xi = (attend_alike(compare_cosines(models, heard, m), 0.0, 5.0) for m in (9, 0))
        torch.testing.assert_close(few.to_matrix(10), xi.weights)


@pytest.mark.parametrize("row_norm", ["project", "softmax5"])
def test_steps_on_c_over_all_others_are_those_of_ktpfl(row_norm):
    with float64():
        rng = torch.Generator().manual_seed(0)
        s = torch.softmax(torch.randn(4, 7, 3, generator=rng), -1)
        c = torch.softmax(torch.randn(6, 6, generator=rng), -1)
        ids = torch.tensor([0, 2, 3, 5])
        columns = torch.rand(6, 6, generator=rng).argsort(1)
        few, whole = Mixing(c.gather(1, columns), columns), Mixing(c)
        by_predictions = [
            partial(knowledge.prediction_gradient, s=p, lam=1.0) for p in s.split(4, 1)
        ]
        by_models = [partial(knowledge.model_gradient, w=s.flatten(1))]
        for steps in (by_predictions, by_models):
            found, wanted = (
                knowledge.descend_knowledge(mix, ids, steps, 0.3, 0.1, row_norm)
                for mix in (few, whole)
            )
            torch.testing.assert_close(found.to_matrix(6), wanted.weights)


@pytest.mark.parametrize("literal", [False, True])
def test_lam_and_the_factors_of_equation_7_count_alike_over_peers(literal):
    with float64():
        rng = torch.Generator().manual_seed(1)
        s = torch.softmax(torch.randn(5, 7, 3, generator=rng), -1)
        c = torch.softmax(torch.randn(5, 5, generator=rng), -1)
        data = torch.rand(5, generator=rng)
        rows = Mixing(c, torch.arange(5).expand(5, 5))
        options = {
            "draw": 7,
            "public_batch_size": 4,
            "lam": 0.3,
            "lr_c": 0.1,
            "literal_eq7": literal,
        }
        learn = METHODS["ktpfl"](tiny_model(), Train(), **options).round[1].receive
        exact, few = (
            learn(Said(torch.tensor(0), Knowledge(mix, data), torch.arange(5), s), None, None)
            for mix in (Mixing(c), rows)
        )
        torch.testing.assert_close(few.mix.c.to_matrix(5), exact.mix.c.weights)


# Methods: few peers


def test_few_peers_of_ucfl_are_of_the_own_group_and_weigh_as_in_w():
    g, group = cloud()
    n, sigma = torch.arange(1.0, 41), torch.full((40,), 3.0).double()
    rows = find_rows(g, sigma, n, 5)
    assert (group[rows.ids] == group[:, None]).all()
    whole = find_rows(g, sigma, n.double(), 0).weights.gather(1, rows.ids)
    torch.testing.assert_close(rows.weights.double(), whole / whole.sum(1, keepdim=True))


def test_streams_of_few_peers_are_the_groups():
    g, group = cloud()
    n = torch.ones(40)
    rows = find_rows(g, torch.full((40,), 3.0).double(), n, 9)
    known = torch.ones(40, dtype=torch.bool)
    stream, mix = group_rows(rows, 4, known, n, np.random.default_rng(0))
    assert torch.equal(stream[:, None] == stream, group[:, None] == group)
    torch.testing.assert_close(mix.weights.sum(1), torch.ones(4))
    known[7] = False
    stream, mix = group_rows(rows, 4, known, n, np.random.default_rng(0))
    assert stream[7] == 4
    torch.testing.assert_close(mix.weights[4], n / 40)


def test_a_robust_average_is_taken_over_the_same_rows():
    uploads = stack([tiny_model().start(k) for k in range(5)])
    g = cloud(5)[0]
    rows = find_rows(g, torch.full((5,), 20.0).double(), torch.ones(5), 2)
    everyone = torch.arange(5)
    for rule, average in (("mean", mean), ("median", build_average("median", 0.2))):
        replies = Replies(everyone, uploads, torch.ones(5), average=average)
        found = average_few(replies, everyone, rows)
        for name, a in average(uploads, rows.to_matrix(5)).params.items():
            torch.testing.assert_close(found.params[name], a, msg=rule)


@over_few
def test_both_paths_agree_with_sampling_and_dropouts(name):
    with float64():
        options = sparse(name)
        runs = [
            play(
                name,
                tiny(7),
                rounds=4,
                participation=5,
                dropout_clients=0.2,
                settings=s,
                options=options,
            )
            for s in (STACKED, SEQUENTIAL)
        ]
        assert_same(*map(personal, runs))


@over_few
def test_few_peers_change_what_is_mixed_but_train_all_the_same(name):
    exact, mine = (
        play(name, tiny(9), rounds=4, train=Train(batch_size=4, lr=0.05), options=options)
        for options in (sparse(name) | {SPARSE[name][0]: 0}, sparse(name))
    )
    found, wanted = personal(mine), personal(exact)
    assert all(torch.isfinite(a).all() for a in found.values())
    assert any(not torch.equal(found[i], wanted[i]) for i in found)


@over_few
def test_the_server_survives_the_wire_format_and_takes_a_newcomer(name, tmp_path):
    loop = play(name, tiny(7), rounds=3, options=sparse(name))
    server, method = loop.position.server, loop.program[-1].method
    save_tree(server, tmp_path, "server")
    again = load_tree(tmp_path, "server")
    rng = np.random.default_rng
    wide = method.admit(again)
    for trip in method.round:
        for i in range(7):
            sent = trip.send(server, i, rng(i)), trip.send(wide, i, rng(i))
            if name not in ("fedamp", "heurfedamp"):  # whose messages a newcomer is part of
                torch.testing.assert_close(*map(_flat, sent))
        assert _flat(trip.send(wide, 7, rng(0))).isfinite().all()


def _flat(tree):
    leaves = torch.utils._pytree.tree_leaves(tree)
    return torch.cat([leaf.flatten().double() for leaf in leaves])


@over_few
def test_sparse_rows_are_noted_while_they_can_be_looked_at(name, monkeypatch):
    if name == "cfl":
        return  # it notes its clusters
    (note,) = {"W", "xi", "P", "c"} & set(play(name, tiny(6), rounds=1).server_notes())
    small = play(name, tiny(6), rounds=1, options=sparse(name))
    assert small.server_notes()[note].shape == (6, 6)
    monkeypatch.setattr(mixing, "SHOWN", 5)
    assert note not in small.server_notes()


# FedFomo


def test_a_row_of_p_keeps_what_is_furthest_from_zero():
    weights = torch.tensor([[0.5, -2.0, 0.1], [0.0] * 3])
    rows = Mixing(weights, torch.tensor([[1, 2, 3], [FREE] * 3]))
    ids, scores = torch.tensor([[0, 3, 4]]), torch.tensor([[9.0, 0.2, 1.0]])
    found = rows.add(torch.tensor([0]), ids, scores)
    assert dict(zip(found.ids[0].tolist(), found.weights[0].tolist(), strict=True)) == {
        2: -2.0,
        4: 1.0,
        1: 0.5,
    }
    assert found.ids[1].tolist() == [FREE] * 3


def test_offers_are_the_best_then_the_untried_then_the_harmful():
    affinity = Mixing(
        torch.tensor([[0.5, 2.0, -1.0]]).repeat(6, 1), torch.tensor([[3, 1, 2]]).repeat(6, 1)
    )
    last = LastModels(Point({}), torch.ones(6, dtype=torch.bool))
    server = FedFomoServer(last, affinity, torch.tensor(0))
    for seed in range(20):
        ids = choose_offers(server, 0, 6, 0.0, np.random.default_rng(seed))
        assert ids[:3] == [0, 1, 3]
        assert sorted(ids[3:5]) == [4, 5]
        assert ids[5] == 2
        chance = choose_offers(server, 0, 3, 1.0, np.random.default_rng(seed))
        assert len(set(chance)) == 3
    one = last._replace(heard=torch.tensor([False, True] + [False] * 4))
    few = server._replace(last=one)
    assert choose_offers(few, 0, 4, 0.0, np.random.default_rng(0)) == [0, 1, 0, 0]


# KT-pFL


def test_free_places_go_to_the_nearest_who_speak_and_stay():
    points, group = cloud(12, groups=3)
    start = torch.full((12, 4), FREE)
    start[:, 0] = torch.arange(12)
    c = Mixing(torch.full((12, 4), 0.25), start)
    some = torch.tensor([0, 1, 3, 6])  # of 0's group: 3 and 6
    once = knowledge.fill(c, some, [points[some]])
    assert set(once.ids[0].tolist()) == {0, 1, 3, 6}
    assert once.ids[2].tolist() == [2, FREE, FREE, FREE]
    whole = knowledge.fill(once, torch.arange(12), [points])
    assert torch.equal(whole.ids[some], once.ids[some])
    late = torch.tensor([i for i in range(12) if i not in some.tolist()])
    assert (group[whole.ids[late]] == group[late, None]).all()
    assert all(len(row.unique()) == 4 for row in whole.ids)


# CFL


def test_bundles_are_cut_where_all_pairs_are():
    for seed in range(5):
        updates, group = cloud(60, groups=2, spread=0.5, seed=seed)
        whole, bundled = bisect_updates(updates), bisect_bundles(updates, 8)
        assert torch.equal(whole == whole[0], group == group[0])
        assert torch.equal(bundled == bundled[0], group == group[0])


def test_equal_directions_are_cut_too():
    found = bisect_bundles(torch.ones(6, 100) * torch.arange(1.0, 7)[:, None], 3)
    assert 0 < int(found.sum()) < 6


# Refusals


@over_few
def test_what_does_not_fit_is_refused_with_the_number_at_which_it_stops(name, monkeypatch):
    option, _ = SPARSE[name]
    monkeypatch.setattr(bounds, "read_memory_limit", lambda: 100_000)
    stops = rf"{name} with 200 clients.*at most \d+ clients.*--{option}"
    with pytest.raises(BadInput, match=stops):
        play(name, tiny(200), until=0)
    with pytest.raises(BadInput, match="fewer clients or a smaller network"):
        play(name, tiny(200), until=0, options={option: 2})
    monkeypatch.setattr(bounds, "read_memory_limit", lambda: 2**43)
    play(name, tiny(20), until=0)


def test_the_number_at_which_it_stops_is_the_largest_that_fits(monkeypatch):
    monkeypatch.setattr(bounds, "read_memory_limit", lambda: 20_000)
    assert bounds.find_max_clients(lambda n: n * n) == 100
    bounds.check_clients("x", 100, lambda n: n * n)
    with pytest.raises(BadInput, match="at most 100 clients"):
        bounds.check_clients("x", 101, lambda n: n * n)


def test_few_peers_on_another_device_than_the_processor_are_refused():
    with torch.device("meta"):
        bounds.check_clients("ucfl", 3, lambda n: n, "give --peers 50")
        with pytest.raises(BadInput, match="ucfl finds peers and bundles on the processor only"):
            bounds.check_clients("ucfl", 3, lambda n: n)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ucfl", {"peers": 2, "streams": -1}, "streams = -1 compares whole rows"),
        ("ucfl", {"peers": -1}, "peers = -1"),
        ("ktpfl", {"peers": 2, "mix": "topk"}, "peers = 2 is for a learned c"),
        ("cfl", {"bundles": 1}, "bundles = 1"),
    ],
)
def test_impossible_options_are_refused(name, options, message):
    with pytest.raises(BadInput, match=message):
        play(name, until=0, options=options)
