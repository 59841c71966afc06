"""Crops and flips are those that numpy makes by hand, and nonsense is refused."""

import numpy as np
import pytest
import torch

from coterie.core.augmentation import Augmentation, draw_moves, move_images, read_augmentation
from coterie.core.errors import BadInput
from coterie.core.rng import stream


def by_hand(image, border, black, move):
    """One image [c, h, w], padded, cropped and flipped by numpy."""
    _, h, w = image.shape
    wide = np.pad(image, ((0, 0), (border, border), (border, border)))
    down, right, flip = int(move[0]) + border, int(move[1]) + border, move[2]
    found = wide[:, down : down + h, right : right + w]
    seen = np.pad(np.ones((h, w), bool), border)[down : down + h, right : right + w]
    if flip:
        found, seen = found[..., ::-1], seen[..., ::-1]
    return np.where(seen, found, black)


@pytest.mark.parametrize("spec", ["crop:1", "crop:4", "flip", "crop:3,flip"])
def test_moves_are_what_numpy_gives_by_hand(spec):
    known, rng = read_augmentation(spec), np.random.default_rng(1)
    x = rng.normal(size=(60, 2, 5, 7)).astype(np.float32)
    black = rng.normal(size=(2, 5, 7)).astype(np.float32)
    moves = known.draw(np.random.default_rng(2), len(x))
    found = move_images(torch.from_numpy(x), torch.from_numpy(moves), torch.from_numpy(black))
    for image, move, one in zip(x, moves, found.numpy(), strict=True):
        assert (one == by_hand(image, known.border, black, move)).all()
    assert (found.numpy() != x).any()


def test_every_crop_and_every_flip_is_as_likely():
    moves = Augmentation(border=2, flip=True).draw(np.random.default_rng(0), 50_000)
    kinds, counts = np.unique(moves, axis=0, return_counts=True)
    assert len(kinds) == 5 * 5 * 2
    assert abs(moves[:, :2]).max() == 2
    assert abs(counts / counts.mean() - 1).max() < 0.15


def test_padding_takes_no_draw():
    """A client's rows have the same moves however its batches are padded."""
    places = np.array([[[0, 2, 1], [3, -1, -1]], [[1, 0, -1], [-1, -1, -1]]])
    wide = np.pad(places, [(0, 0), (0, 1), (0, 2)], constant_values=-1)

    def drawn(shape):
        return draw_moves("crop:3,flip", shape, [stream(5, "augment", k) for k in range(2)])

    plain, padded = drawn(places), drawn(wide)
    assert (plain[places >= 0] == padded[wide >= 0]).all()
    assert not padded[wide < 0].any()


@pytest.mark.parametrize(
    "spec",
    [
        "crop",
        "crop:",
        "crop:0",
        "crop:-1",
        "crop:x",
        "turn",
        "flip:2",
        "flip,flip",
        "crop:2,crop:3",
    ],
)
def test_nonsense_is_refused(spec):
    with pytest.raises(BadInput, match="augment"):
        read_augmentation(spec)


def test_none_is_nothing_and_a_spec_says_itself():
    assert read_augmentation("none") is None
    assert read_augmentation(" flip , crop:2").spec == "crop:2,flip"


@pytest.mark.parametrize(
    ("spec", "shape", "said"),
    [
        ("flip", (6,), r"'here' has rows of shape \[6\]: leave out --augment"),
        ("crop:5", (1, 8, 5), "8 x 5: give a border of at most 4"),
        ("flip", (1, 8, 1), "one column: a flip changes nothing"),
    ],
)
def test_what_has_no_sense_for_rows_is_refused(spec, shape, said):
    with pytest.raises(BadInput, match=said):
        read_augmentation(spec).check(shape, "here")
