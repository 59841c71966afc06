import numpy as np
import pytest

from coterie.data.client_rows import ClientRows, counts_of
from coterie.data.partition.cuts import Shares, cut_at_points, cut_rows
from coterie.data.prepare.moments import Moments


def lists(seed=0, clients=50, least=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 1000, n) for n in rng.integers(least, 12, clients)]


def same(found, wanted):
    assert len(found) == len(wanted)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_held_rows_are_the_lists_they_were_made_of():
    rows = lists()
    held = ClientRows.of(rows)
    same(held, rows)
    same([held[i] for i in range(-3, 3)], [rows[i] for i in range(-3, 3)])
    same(held[5:20], rows[5:20])
    assert np.array_equal(held.concatenate(), np.concatenate(rows))
    assert np.array_equal(counts_of(held), counts_of(rows))
    assert np.array_equal(held.owners(), np.repeat(np.arange(50), counts_of(rows)))
    assert ClientRows.of(held) is held
    with pytest.raises(IndexError):
        held[50]


def test_some_clients_of_held_rows_keep_theirs():
    rows, chosen = lists(1), [7, 3, 3, 40]
    some = ClientRows.of(rows).only(chosen)
    wanted = [rows[i] for i in chosen]
    same(some, wanted)
    assert np.array_equal(some.concatenate(), np.concatenate(wanted))
    same(some.plus(ClientRows.of(rows)), [*wanted, *rows])
    same(some.map_rows(lambda r: r + 5), [r + 5 for r in wanted])


def test_spans_are_rows_without_an_array():
    spans = ClientRows.pack(None, np.array([3, 0, 2]))
    same(spans, [[0, 1, 2], [], [3, 4]])
    assert spans.only([2, 0]).concatenate().tolist() == [3, 4, 0, 1, 2]
    same(spans.only([2, 0]).map_rows(lambda r: r * 10), [[30, 40], [0, 10, 20]])


def test_rows_by_owner_keep_their_order():
    owners = np.random.default_rng(2).integers(0, 30, 400)
    held = ClientRows.by_owner(np.arange(400) * 2, owners)
    same(held, [np.flatnonzero(owners == u) * 2 for u in np.unique(owners)])
    assert len(ClientRows.by_owner(np.zeros(0, int), np.zeros(0, int))) == 0


@pytest.mark.parametrize("how", ["order", "shuffle"])
def test_all_clients_are_cut_as_one_by_one(how):
    rows, shares = lists(3, least=1), Shares(0.2, 0.3)
    rngs = [np.random.default_rng(k) for k in range(len(rows))]
    cuts = cut_at_points(ClientRows.of(rows), shares, rngs if how == "shuffle" else None)
    wanted = [
        cut_rows(r, np.zeros(0), how, *shares, np.random.default_rng(k)) for k, r in enumerate(rows)
    ]
    for part, each in zip(cuts, zip(*wanted, strict=True), strict=True):
        same(part, each)


@pytest.mark.parametrize("columns", [1, 6])
def test_moments_of_many_clients_are_bit_for_bit_those_of_one_after_another(columns):
    rng = np.random.default_rng(4)
    counts = rng.integers(1, 40, 300)
    cells = rng.normal(50, 3, (counts.sum(), columns))
    cells[rng.random(cells.shape) < 0.1] = np.nan
    pooled, start = Moments.none(columns), 0
    each = Moments.of_each(cells, counts)
    for k, n in enumerate(counts):
        one = Moments.of(cells[start : start + n])
        assert np.array_equal(one.squares, each.squares[k])
        assert np.array_equal(one.total, each.total[k])
        pooled, start = pooled.plus(one), start + n
    found = Moments.none(columns).then(each)
    for option in ("count", "total", "squares"):
        assert np.array_equal(getattr(found, option), getattr(pooled, option))
