"""Laws of the splits: no row twice, and the counts that each published recipe promises."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import BadInput
from coterie.data.partition import published
from coterie.data.partition.registry import PARTITIONERS, groups_of, options_of, partition_rows

MNIST = [
    6903,
    7877,
    6990,
    7141,
    6824,
    6313,
    6876,
    7293,
    6825,
    6958,
]  # rows of each digit, train and test
LETTERS = [
    2706,
    1501,
    2171,
    2462,
    4943,
    1840,
    1036,
    2000,
    2475,
    943,
]  # EMNIST byclass test part, a to j
MILD = {
    "dirichlet": {"alpha": 1.0, "smallest": 1},
    "femnist": {"scale": 0.05},
}  # options that fit small data


def labels_of(sizes):
    return np.random.default_rng(7).permutation(np.repeat(np.arange(len(sizes)), sizes))


def split(name, labels, clients, seed=0, **options):
    return partition_rows(name, labels, clients, np.random.default_rng(seed), **options)


def counts_of(parts, labels, kinds=10):
    return np.stack([np.bincount(labels[part], minlength=kinds) for part in parts])


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(PARTITIONERS)),
    sizes=st.lists(st.integers(200, 400), min_size=10, max_size=10),
    clients=st.sampled_from([10, 20]),
    seed=st.integers(0, 2**32),
)
def test_every_split_deals_a_row_at_most_once_and_leaves_nobody_empty(name, sizes, clients, seed):
    labels = labels_of(sizes)
    users = np.random.default_rng(seed).integers(0, 30, len(labels)) if name == "user" else None
    parts = split(name, labels, clients, seed, users=users, **MILD.get(name, {}))
    dealt = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < len(labels)
    assert dealt.dtype == np.int64


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
def test_a_split_is_its_seed(name):
    labels = labels_of([300] * 10)
    users = np.arange(len(labels)) % 30
    options = MILD.get(name, {})
    first, again, other = (
        split(name, labels, 20, seed, users=users, **options) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(rows=st.integers(1, 500), clients=st.integers(1, 50))
def test_iid_deals_everything_in_equal_parts(rows, clients):
    clients = min(clients, rows)
    parts = split("iid", np.zeros(rows, int), clients)
    sizes = [len(part) for part in parts]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(clients=st.integers(1, 40), each=st.integers(1, 10), seed=st.integers(0, 1000))
def test_classes_gives_k_classes_a_client_and_balanced_owners(clients, each, seed):
    labels = labels_of([120, 130, 140, 150, 160] * 2)
    counts = counts_of(split("classes", labels, clients, seed, classes_each=each), labels)
    owners = (counts > 0).sum(0)
    assert ((counts > 0).sum(1) == each).all()
    assert owners.max() - owners.min() <= (1 if clients * each % 10 else 0)
    for label in np.flatnonzero(owners):
        shares = counts[counts[:, label] > 0, label]
        assert shares.sum() == (labels == label).sum()
        assert shares.max() - shares.min() <= 1


def test_persfl_ds1_gives_every_user_the_same_total():
    labels = labels_of([5000] * 10)
    counts = counts_of(split("classes", labels, 10, classes_each=4), labels)
    assert set(counts[counts > 0]) == {1250}
    assert (counts.sum(1) == 5000).all()


def test_jitter_makes_shares_unequal_and_still_deals_everything():
    labels = labels_of([1000] * 10)
    counts = counts_of(split("classes", labels, 10, classes_each=4, jitter=0.5), labels)
    assert (counts.sum(0) == 1000).all()
    assert ((counts > 0).sum(1) == 4).all()
    assert np.ptp(counts[counts > 0]) > 50


def test_dirichlet_cut_is_floor_of_the_cumulated_shares():
    labels = labels_of([100, 300])
    counts = counts_of(split("dirichlet", labels, 5, 3, alpha=0.4, smallest=0), labels, 2)
    q = np.random.default_rng(3).dirichlet(np.full(5, 0.4), 2)
    for label, size in enumerate((100, 300)):
        ends = np.floor(np.cumsum(q[label])[:-1] * size).astype(int)
        assert np.array_equal(counts[:, label], np.diff(np.r_[0, ends, size]))


def test_dirichlet_round_gives_rounded_shares_until_the_class_runs_dry():
    labels = labels_of([101, 303])
    counts = counts_of(
        split("dirichlet", labels, 7, 5, alpha=0.9, rule="round", smallest=0), labels, 2
    )
    q = np.random.default_rng(5).dirichlet(np.full(7, 0.9), 2)
    for label, size in enumerate((101, 303)):
        left = size
        for u in range(7):
            assert counts[u, label] == min(left, np.round(q[label, u] * size))
            left -= counts[u, label]


def test_dirichlet_draws_again_until_every_client_has_the_smallest():
    labels = labels_of([60] * 10)
    seed = next(
        s for s in range(50) if min(map(len, split("dirichlet", labels, 20, s, smallest=0))) < 10
    )
    parts = split("dirichlet", labels, 20, seed, smallest=10)
    assert min(map(len, parts)) >= 10
    assert sum(map(len, parts)) == 600


def test_small_alpha_concentrates_classes():
    labels = labels_of([500] * 10)

    def largest_share(alpha):
        counts = counts_of(split("dirichlet", labels, 10, alpha=alpha, smallest=1), labels)
        return (counts.max(1) / counts.sum(1)).mean()

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(100.0)


def test_pairs_repeat_the_published_sizes():
    labels = labels_of(MNIST)
    parts = split("pairs", labels, 20)
    published = [5112, 4988, 3890, 4254, 3216, 3073, 3272, 3014, 3882, 4358]
    published += [2942, 1556, 2203, 1853, 1782, 3653, 4315, 4030, 4180, 4427]
    assert [len(part) for part in parts] == published
    assert sum(published) == 70_000
    assert all(set(labels[part]) == {2 * u % 10, 2 * u % 10 + 1} for u, part in enumerate(parts))
    assert [len(part) for part in split("pairs", labels, 20, draws="stream")] != published


def test_pfedme_cifar_repeats_the_published_sizes():
    labels = labels_of([6000] * 10)
    counts = counts_of(split("pfedme-cifar", labels, 20), labels)
    published = [4536, 2794, 4494, 3418, 2936, 2612, 3062, 1954, 3186, 2648]
    published += [3076, 2028, 1934, 1572, 2966, 2934, 3294, 1808, 2170, 1150]
    assert counts.sum(1).tolist() == published
    assert counts.sum() == 54_572
    assert (counts == 10).sum() == 7
    assert all(
        set(np.flatnonzero(counts[u])) == {u % 10, (u + 1) % 10, (u + 2) % 10} for u in range(20)
    )


def test_lognormal_repeats_the_published_sizes():
    labels = labels_of([6000] * 10)
    counts = counts_of(split("lognormal", labels, 10, draws="legacy"), labels)
    assert counts.sum(1).tolist() == [6756, 5346, 2014, 3510, 2440, 1856, 654, 1930, 2800, 2456]
    assert all(set(np.flatnonzero(counts[u])) == {u, (u + 1) % 10} for u in range(10))


def test_powerlaw_repeats_fedprox_mnist():
    labels = labels_of(MNIST)
    counts = counts_of(split("powerlaw", labels, 1000, draws="legacy"), labels)
    sizes = counts.sum(1)
    assert (sizes.sum(), sizes.min(), sizes.max()) == (69_046, 10, 1897)
    assert all(set(np.flatnonzero(counts[u])) == {u % 10, (u + 1) % 10} for u in range(1000))
    drawn = sum(map(len, split("powerlaw", labels, 1000, seed=4)))
    assert 60_000 < drawn <= 70_000
    assert drawn != 69_046


def test_perfedavg_counts():
    labels = labels_of([5000] * 10)
    counts = counts_of(split("perfedavg", labels, 10, a=68), labels)
    assert (counts[:5, :5] == 68).all()
    assert (counts[:5, 5:] == 0).all()
    for row in counts[5:]:
        assert sorted(row[:5]) == [0, 0, 0, 0, 34]
        assert sorted(row[5:]) == [0, 0, 0, 0, 136]
    assert ((counts[5:] > 0).sum(0) == 1).all()  # five users, five classes: one each
    assert (
        counts_of(split("perfedavg", labels_of([170] * 10), 10), labels_of([170] * 10))[0, 0] == 30
    )


@pytest.mark.parametrize(
    ("sizes", "clients", "many", "few"),
    [([6000] * 10, 20, 450, 150), ([6000] * 10, 100, 90, 30), (LETTERS, 20, 70, 23)],
)
def test_ktpfl_1_counts(sizes, clients, many, few):
    labels = labels_of(sizes)
    counts = counts_of(split("ktpfl-1", labels, clients), labels)
    half = clients // 2
    assert (counts[:half] == [many] * 5 + [few] * 5).all()
    assert (counts[half:] == [few] * 5 + [many] * 5).all()
    assert (
        counts_of(split("ktpfl-1", labels, clients, many=9, few=2), labels)[0].tolist()
        == [9] * 5 + [2] * 5
    )


def test_ktpfl_2_counts():
    labels = labels_of([6000] * 10)
    counts = counts_of(split("ktpfl-2", labels, 20), labels)
    assert set(counts[counts > 0]) == {300}
    assert ((counts > 0).sum(1) == 2).all()
    crowded = counts_of(
        split("ktpfl-2", labels, 100), labels
    )  # the busiest class sets the count for all
    assert len(set(crowded[crowded > 0])) == 1
    assert crowded.sum(0).max() > 6000 - crowded.max()


def test_femnist_counts():
    labels = labels_of(LETTERS)
    counts = counts_of(split("femnist", labels, 200, scale=0.35), labels)
    for u, row in enumerate(counts):
        assert set(np.flatnonzero(row)) == {(u + j) % 10 for j in range(5)}
        assert len(set(row[row > 0])) == 1
        assert row.max() >= 2
    full = split("femnist", labels_of([4000] * 10), 200)
    assert 15_000 < sum(map(len, full)) < 25_000  # 200 clients of about 90 rows


def test_user_keeps_the_natural_clients_and_the_order_of_their_rows():
    users = np.array([5, 2, 2, 9, 5, 2, 9, 9, 9])
    labels = np.zeros(9, int)
    assert [p.tolist() for p in split("user", labels, None, users=users)] == [
        [1, 2, 5],
        [0, 4],
        [3, 6, 7, 8],
    ]
    chosen = split("user", labels, 2, users=users)
    assert [set(users[p]) for p in chosen] in ([{2}, {5}], [{2}, {9}], [{5}, {9}])
    assert len(split("user", labels, None, users=users, smallest=3)) == 2
    mixed = np.random.default_rng(0).integers(0, 3, 5000)
    assert all(
        (np.diff(part) > 0).all() for part in split("user", np.zeros(5000, int), None, users=mixed)
    )


def test_legacy_draws_leave_the_global_generators_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    split("pfedme-cifar", labels_of([600] * 10), 20)
    split("pairs", labels_of([600] * 10), 20)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_groups_are_the_clients_with_the_same_classes():
    labels = labels_of([600] * 10)
    for name in ("pairs", "pfedme-cifar", "powerlaw"):
        counts = counts_of(split(name, labels, 20), labels) > 0
        groups = groups_of(name, 20, 10)
        same = (counts[:, None] == counts[None]).all(-1)
        assert np.array_equal(groups[:, None] == groups[None], same), name
    assert groups_of("ktpfl-1", 4, 10).tolist() == [0, 0, 1, 1]
    assert groups_of("dirichlet", 3, 10).tolist() == [0, 0, 0]


def test_options_come_from_the_signature():
    assert {k: p.default for k, p in options_of("dirichlet").items()} == {
        "alpha": 0.4,
        "rule": "cut",
        "smallest": 10,
    }
    assert set(options_of("user")) == {"smallest"}


@pytest.mark.parametrize(
    ("name", "clients", "options", "says"),
    [
        ("dirichlett", 5, {}, "did you mean 'dirichlet'"),
        ("dirichlet", 5, {"alfa": 1.0}, "did you mean 'alpha'"),
        ("dirichlet", 5, {"alpha": "much"}, "must be float"),
        ("dirichlet", 5, {"smallest": True}, "must be int"),
        ("dirichlet", 5, {"alpha": 0.0}, "alpha = 0.0"),
        ("dirichlet", 5, {"alpha": -1}, "alpha = -1"),
        ("dirichlet", 5, {"alpha": float("nan")}, "alpha = nan"),
        ("dirichlet", 5, {"rule": "ceil"}, "rule = 'ceil'"),
        ("dirichlet", 90, {}, "at most 60"),
        ("dirichlet", 50, {"alpha": 0.01}, "in 100 draws"),
        ("dirichlet", 50, {"alpha": 0.01, "smallest": 0}, "got no rows"),
        ("iid", 601, {}, "num_clients = 601"),
        ("iid", 0, {}, "num_clients = 0"),
        ("classes", 5, {"classes_each": 11}, "classes_each = 11"),
        ("classes", 5, {"classes_each": 0}, "classes_each = 0"),
        ("classes", 5, {"jitter": 1.5}, "jitter = 1.5"),
        ("classes", 500, {"classes_each": 5}, "owners"),
        ("pairs", 7, {}, "multiple of 5"),
        ("pairs", 600, {}, "ran out of rows"),
        ("pairs", 20, {"draws": "legasy"}, "draws = 'legasy': give stream, legacy or persfl"),
        ("pairs", 20, {"legacy_seed": -1}, "legacy_seed = -1"),
        ("pairs", 20, {"draws": "persfl"}, "ten clients and ten classes, not 20 and 10"),
        ("classes", 10, {"each": 9, "jitter": 0.1}, "jitter = 0.1 has no effect on each = 9"),
        ("classes", 10, {"each": 61, "classes_each": 1}, "the split asks for 61"),
        ("powerlaw", 25, {}, "multiple of 10"),
        ("powerlaw", 200, {}, "class 0 has 60 rows"),
        ("perfedavg", 5, {}, "even number"),
        ("perfedavg", 10, {"a": 50}, "class 0 has 60 rows"),
        ("perfedavg", 400, {}, "at least 2"),
        ("ktpfl-1", 5, {}, "even number"),
        ("ktpfl-1", 10, {"many": 60, "few": 1}, "asks for 305"),
        ("ktpfl-1", 10, {"many": -1, "few": 1}, "many = -1: give a whole number from 0"),
        ("ktpfl-2", 10, {"each": 61}, "rows, but the split asks for"),
        ("pfedme-cifar", 100, {}, "class 0 has 60 rows"),
        ("femnist", 10, {"scale": 50.0}, "lower scale"),
        ("femnist", 10, {"scale": 0.0}, "scale = 0.0"),
        ("user", 5, {}, "natural clients"),
    ],
)
def test_bad_input_is_refused_in_one_clear_line(name, clients, options, says):
    with pytest.raises(BadInput) as caught:
        split(name, labels_of([60] * 10), clients, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_splits_by_class_refuse_numbers_to_predict():
    with pytest.raises(BadInput, match="needs class labels"):
        split("classes", np.linspace(0, 1, 50, dtype=np.float32), 5)


def test_too_many_natural_clients_are_refused():
    with pytest.raises(BadInput, match="have 2 natural clients"):
        split("user", np.zeros(4, int), 3, users=np.array([0, 0, 1, 1]))


@pytest.mark.parametrize(
    ("split", "draws", "usual"),
    [
        ("pairs", "persfl", 1),
        ("pairs", "stream", 1),
        ("lognormal", "stream", 1),
        ("powerlaw", "stream", 0),
    ],
)
def test_a_legacy_seed_without_legacy_draws_is_refused(split, draws, usual):
    labels, rng = np.repeat(np.arange(10), 6000), np.random.default_rng(0)
    deal = getattr(published, split)
    deal(labels, 10, rng, draws=draws, legacy_seed=usual)
    with pytest.raises(BadInput, match=rf"legacy_seed = 7 has no effect with draws = '{draws}'"):
        deal(labels, 10, rng, draws=draws, legacy_seed=7)
