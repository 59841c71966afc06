"""Laws of a mixing: where few peers are all clients, both forms do the same."""

import numpy as np
import pytest
import torch

from coterie.methods import mixing
from coterie.methods.mixing import FREE, Mixing, start_equal, start_own, start_rows, start_zero


def both(n=5, seed=0):
    """The same weights as a whole matrix, and as entries in another order for each row."""
    rng = torch.Generator().manual_seed(seed)
    weights = torch.softmax(torch.randn(n, n, generator=rng), 1)
    ids = torch.rand(n, n, generator=rng).argsort(1)
    return Mixing(weights), Mixing(weights.gather(1, ids), ids)


def test_both_forms_mix_alike():
    whole, few = both()
    stack = torch.randn(5, 3, 2)
    torch.testing.assert_close(few.mix_rows(stack), whole.mix_rows(stack))
    assert few.mix_early(stack) == ()
    some = torch.tensor([0, 2, 3])
    for i in range(5):
        torch.testing.assert_close(few.mix(stack, i), whole.mix_rows(stack)[i])
        mixtures = [m.mix_among(stack[some], i, some) for m in (few, whole)]
        torch.testing.assert_close(*mixtures)


def test_both_forms_take_new_rows_alike():
    whole, few = both()
    of, rows = torch.tensor([1, 4]), torch.softmax(torch.randn(2, 5), 1)
    wanted = whole.replace(of, whole.keep(rows))
    torch.testing.assert_close(few.replace(of, few.keep(rows)).to_matrix(5), wanted.weights)
    group = torch.tensor([0, 1, 1, 0, 1])
    groups = [m.over_groups(group, 2).to_matrix(2) for m in (few, whole)]
    torch.testing.assert_close(*groups)


def test_rows_of_those_who_are_there_have_no_other_entries():
    whole, few = both()
    ids = torch.tensor([0, 2, 3])
    inner, inner_few = both(3, seed=1)
    after = whole.replace_among(ids, inner).weights
    torch.testing.assert_close(few.replace_among(ids, inner_few).to_matrix(5)[ids], after[ids])
    assert not after[ids][:, [1, 4]].any()
    assert torch.equal(after[[1, 4]], whole.weights[[1, 4]])


@pytest.mark.parametrize("peers", [0, 2])
def test_a_newcomer_changes_nobody_elses_weights(peers):
    before = start_zero(5, peers).add(
        torch.arange(5), torch.tensor([[1], [2], [3], [4], [0]]), torch.ones(5, 1)
    )
    after = before.admit().to_matrix(6)
    assert torch.equal(after[:5, :5], before.to_matrix(5))
    assert not after[5].any()
    assert not after[:, 5].any()
    even = start_equal(5, peers).admit_equal()
    assert even.weights.shape == ((6, 3) if peers else (6, 6))
    torch.testing.assert_close(even.weights.sum(1), torch.ones(6))


def test_which_form_it_is_follows_from_the_number_of_peers():
    row = torch.full((5,), 0.2)
    for start in (start_zero, start_own, start_equal):
        assert [start(5, m).sparse for m in (0, 2, 4, 9)] == [False, True, False, False]
    assert [start_rows(row, m).sparse for m in (0, 2, 4, 9)] == [False, True, False, False]
    assert [start_own(5, m).limit(m) for m in (2, 9)] == [2, 0]


def test_what_is_not_known_or_too_large_is_not_shown(monkeypatch):
    whole, few = both()
    torch.testing.assert_close(few.describe("W")["W"], whole.describe("W")["W"])
    assert start_rows(torch.full((5,), 0.2), 2).describe("W") == {}
    assert not start_zero(5, 2).describe("P")["P"].any()
    monkeypatch.setattr(mixing, "SHOWN", 4)
    assert few.describe("W") == {}
    assert set(whole.describe("W")) == {"W"}


@pytest.mark.parametrize("sparse", [False, True])
def test_ranks_name_every_other_known_client_once(sparse):
    whole, few = both(8)
    mix = few if sparse else whole
    known = torch.tensor([True] * 6 + [False] * 2)
    best = list(mix.rank(2, known, 0.0, np.random.default_rng(0)))
    order = whole.weights[2].argsort(descending=True).tolist()
    assert best == [j for j in order if j < 6 and j != 2]
    drawn = list(mix.rank(2, known, 1.0, np.random.default_rng(0)))
    assert sorted(drawn) == [0, 1, 3, 4, 5]
    assert FREE not in drawn
