"""Groups whose rows are rotated or whose labels are permuted, and other changes of rows."""

import numpy as np
import torch

from coterie.data.pipeline import build_federation
from coterie.data.prepare.transforms import augment_once, transforms_of
from helpers.datasets import coded, features, number, rows_of

PARTS = ("train", "validation", "test")


def test_rotation_groups_are_turned_by_90_180_270_and_0():
    base = coded(side=5)
    got = build_federation(base, "iid", 8, scale="none", rotate=4)
    assert np.bincount(got.groups).tolist() == [2, 2, 2, 2]
    for i in range(8):
        rows = rows_of(got, i)
        back = np.rot90(got.x.numpy()[rows], -[1, 2, 3, 0][got.groups[i]], (2, 3))
        assert np.array_equal(back, base.x[number(back)])
        assert np.array_equal(got.y.numpy()[rows], base.y[number(back)])


def test_permutation_groups_have_one_permutation_each():
    base = coded(classes=5)
    got = build_federation(base, "iid", 6, scale="none", permute=3)
    seen = []
    for group in range(3):
        rows = np.concatenate([rows_of(got, i) for i in np.flatnonzero(got.groups == group)])
        pairs = set(
            zip(
                base.y[number(got.x.numpy()[rows])].tolist(),
                got.y.numpy()[rows].tolist(),
                strict=True,
            )
        )
        assert len(pairs) == 5
        assert {new for _, new in pairs} == set(range(5))
        seen.append(frozenset(pairs))
    assert len(set(seen)) == 3


def test_rotation_and_permutation_cross():
    got = build_federation(coded(), "iid", 8, rotate=2, permute=2)
    assert np.bincount(got.groups).tolist() == [2, 2, 2, 2]
    changes = transforms_of(coded(), 0, 2, 2)
    assert [c.turns for c in changes] == [2, 2, 0, 0]
    assert np.array_equal(changes[0].relabel, changes[2].relabel)


def test_permuting_two_classes_gives_both_orders():
    for seed in range(8):
        assert {tuple(c.relabel) for c in transforms_of(coded(classes=2), seed, 1, 2)} == {
            (0, 1),
            (1, 0),
        }


def test_shared_test_is_there_once_a_group_under_its_permutation():
    base = coded(n=500, test=100)
    got = build_federation(base, "iid", 8, validation=0, shared_test=30, permute=4, scale="none")
    assert len(got.x) == 500 - 30 + 4 * 30
    relabel = [change.relabel for change in transforms_of(base, 0, 1, 4)]
    for i in range(8):
        shared = number(got.x.numpy()[got.test[i]])
        assert np.array_equal(shared, np.arange(400, 430))
        assert np.array_equal(got.y.numpy()[got.test[i]], relabel[got.groups[i]][base.y[shared]])
    trained = number(got.x.numpy()[np.concatenate(got.train)])
    assert not set(trained) & set(range(400, 430))


def test_channels_repeat_a_grey_image():
    got = build_federation(coded(), "iid", 4, channels=3)
    assert got.input_shape == (3, 4, 4)
    assert torch.equal(got.x[:, 0], got.x[:, 2])


def test_class_groups_of_recipes_are_known():
    assert (
        build_federation(coded(n=800, classes=10), "pairs", 10).groups.tolist()
        == [0, 1, 2, 3, 4] * 2
    )
    assert build_federation(coded(), "dirichlet", 4).groups.tolist() == [0] * 4


def test_word_indices_and_their_table_pass_through():
    base = features()._replace(
        x=np.arange(900).reshape(300, 3) % 7, table=np.eye(7, dtype=np.float32)
    )
    got = build_federation(base)
    assert got.x.dtype == torch.int64
    assert torch.equal(got.table, torch.eye(7))


def test_images_augmented_once_are_shifted_by_four_pixels_at_most_and_half_of_them_flipped():
    x = np.zeros((2000, 1, 12, 12), np.uint8)
    x[:, 0, 6, 7] = 9  # off the middle: a flip shows
    found = augment_once(x, np.random.default_rng(0))
    assert found.shape == x.shape
    assert found.dtype == np.uint8
    image, _, row, column = np.nonzero(found)
    assert (np.bincount(image, minlength=len(x)) == 1).all()
    # without a flip columns are 3 to 11, with one 0 to 8
    assert set(row - 6) == set(range(-4, 5))
    assert set(column) == set(range(12))
    assert abs((column < 3).mean() - 0.5 / 3) < 0.03
    again = augment_once(x, np.random.default_rng(0))
    assert (found == again).all()


def test_a_federation_augmented_once_has_the_same_rows_and_other_images():
    base = coded(n=200, side=8)
    plain, other = (build_federation(base, "iid", 2, augmented_once=once) for once in (False, True))
    assert all((a == b).all() for a, b in zip(plain.train, other.train, strict=True))
    assert (plain.y == other.y).all()
    assert not (plain.x == other.x).all()
