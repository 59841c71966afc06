"""Gradients whose rows are clipped one by one and noised."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.dp_sgd import PrivateModel, normal
from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.core.point import flatten, stack
from helpers.federations import float64, tiny_model


def batch(rows: int, real: int, key: int = 5) -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        x=torch.as_tensor(rng.normal(size=(rows, 6))),
        y=torch.as_tensor(rng.integers(0, 3, rows)),
        mask=(torch.arange(rows) < real).double(),
        place=torch.arange(rows),
        key=torch.tensor(key),
    )


def vector(gradient) -> torch.Tensor:
    return flatten(stack([gradient]))[0]


def test_a_wide_clip_without_noise_is_the_plain_gradient():
    with float64():
        model = tiny_model()
        w, rows = model.start(0), batch(8, 5)
        private = PrivateModel(model, 1e6, 0.0)
        torch.testing.assert_close(vector(private.grad(w, rows)), vector(model.grad(w, rows)))
        torch.testing.assert_close(
            private.grad_and_loss(w, rows)[1], model.grad_and_loss(w, rows)[1]
        )


def test_one_row_moves_the_sum_by_at_most_the_clip_and_padding_by_nothing():
    with float64():
        model, clip = tiny_model(), 0.3
        w, private = model.start(0), PrivateModel(model, clip, 0.0)
        with_row = vector(private.grad(w, batch(8, 6))) * 6
        without = vector(private.grad(w, batch(8, 5))) * 5
        assert (with_row - without).norm() == pytest.approx(clip, rel=1e-9)
        far = batch(8, 5)
        far.x[5:] = 1e9
        torch.testing.assert_close(vector(private.grad(w, far)) * 5, without)


def test_noise_has_the_deviation_that_was_asked_for_and_is_drawn_anew_each_time():
    with float64():
        model = Model(lambda: nn.Linear(6, 3), name="wide")
        w = model.start(0)
        quiet, loud = (PrivateModel(model, 2.0, noise) for noise in (0.0, 1.5))
        drawn = []
        for key in range(400):
            rows = batch(4, 4, key)
            still = vector(quiet.grad(w, rows))
            drawn += [vector(loud.grad(w, rows)) - still, vector(loud.grad(w, rows)) - still]
        found = torch.stack(drawn) * 4 / (2.0 * 1.5)  # of a sum over four rows, in units
        assert found.std() == pytest.approx(1.0, abs=0.02)
        pairs = torch.corrcoef(torch.stack([found[::2].flatten(), found[1::2].flatten()]))
        assert abs(pairs[0, 1]) < 0.05


def test_draws_are_normal():
    drawn = normal((200_000,), torch.tensor(3)).double()
    moments = [float(drawn.pow(k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)


def test_running_statistics_are_refused():
    with pytest.raises(BadInput, match="running statistics"):
        PrivateModel(tiny_model(norm=True), 1.0, 1.0)
