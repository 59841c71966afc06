"""Averages that a few hostile uploads cannot move far, and what an upload tells beyond its
payload."""

import numpy as np
import pytest
import torch

from coterie.core.point import Point, mean, stack
from coterie.core.robust import build_average, compute_clip_factors, select_krum
from coterie.core.updates import add_noise, compute_updates, origin_of, scale_updates

RNG = np.random.default_rng(0)


def points(rows) -> Point:
    return Point({"w": torch.as_tensor(np.asarray(rows, dtype=np.float64))})


def test_equal_weights_give_the_plain_median_and_the_plain_trimmed_mean():
    for m in (5, 8):
        rows = RNG.normal(size=(m, 7))
        equal = torch.full((m,), 1 / m, dtype=torch.float64)
        median = build_average("median", 0.25)(points(rows), equal).params["w"]
        np.testing.assert_allclose(median, np.median(rows, 0), atol=1e-12)
    trimmed = build_average("trimmed", 0.25)(points(rows), equal).params["w"]
    np.testing.assert_allclose(trimmed, np.sort(rows, 0)[2:-2].mean(0), atol=1e-12)


def test_a_whole_weight_counts_as_so_many_uploads():
    rows = RNG.normal(size=(3, 4))
    twice = np.concatenate([rows, rows[:1], rows[:1]])
    fifth = torch.full((5,), 0.2, dtype=torch.float64)
    weights = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64)
    for rule in ("median", "trimmed"):
        average = build_average(rule, 0.2)
        one = average(points(rows), weights).params["w"]
        torch.testing.assert_close(one, average(points(twice), fifth).params["w"])


def test_rows_of_weights_are_averaged_one_by_one_and_keep_their_sum():
    rows, weights = points(RNG.normal(size=(6, 5))), torch.rand(3, 6, dtype=torch.float64)
    for rule in ("median", "trimmed"):
        average = build_average(rule, 0.2)
        each = stack([average(rows, row) for row in weights]).params["w"]
        torch.testing.assert_close(average(rows, weights).params["w"], each)
        doubled = average(rows, 2 * weights[0]).params["w"]
        torch.testing.assert_close(doubled, 2 * average(rows, weights[0]).params["w"])
    assert build_average("norm", 0.2) is mean


@pytest.mark.parametrize("rule", ["median", "trimmed"])
def test_two_of_ten_cannot_pull_an_average_beyond_the_honest(rule):
    honest = RNG.normal(size=(8, 20))
    rows = np.concatenate([honest, np.full((2, 20), 1e9)])
    equal = torch.full((10,), 0.1, dtype=torch.float64)
    out = build_average(rule, 0.2)(points(rows), equal).params["w"].numpy()
    assert (out <= honest.max(0)).all()
    assert (out >= honest.min(0)).all()


def test_krum_leaves_out_the_far_and_norm_bounds_the_long():
    rows = torch.as_tensor(np.concatenate([RNG.normal(size=(8, 30)), -9 - np.ones((2, 30))]))
    assert select_krum(rows, 0.2).tolist() == list(range(8))
    assert select_krum(rows[:3], 0.4).tolist() == [
        0,
        1,
        2,
    ]  # too few to tell anybody from the others
    factors = compute_clip_factors(rows)
    longest = (factors[:, None] * rows).norm(dim=1)
    assert longest.max() <= rows.norm(dim=1).median() * (1 + 1e-12)
    assert (factors[rows.norm(dim=1) <= rows.norm(dim=1).median()] == 1).all()


def test_a_change_is_measured_from_the_model_that_was_sent():
    sent, upload = points([1.0, 2.0]), (points([4.0, 6.0]), torch.tensor(3.0), torch.tensor([7]))
    origin = origin_of(upload, (torch.tensor(3), sent))
    stacked, origins = stack([upload]), stack([origin])
    assert compute_updates(stacked, origins).tolist() == [[3.0, 4.0, 3.0]]
    assert compute_updates(stacked, origins, models=True).tolist() == [[3.0, 4.0]]
    half = scale_updates(stacked, origins, torch.tensor([0.5]))
    assert half[0].params["w"].tolist() == [[2.5, 4.0]]
    assert half[1].tolist() == [1.5]
    assert half[2].tolist() == [[7]]
    alone = scale_updates(stacked, origins, torch.tensor([0.5]), models=True)
    assert alone[1].tolist() == [3.0]
    more = add_noise(stacked, torch.tensor([[1.0, 2.0, 3.0]]))
    assert compute_updates(more, origins).tolist() == [[4.0, 6.0, 6.0]]
