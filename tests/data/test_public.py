"""Public rows: held out, or from another data set."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from coterie.data.prepare import public
from helpers.datasets import coded, number


def test_held_out_rows_are_nobodys_and_carry_labels_only_when_asked():
    base = coded()
    got = build_federation(base, "iid", 4, public="held-out", public_rows=50, scale="none")
    public = number(got.public.x.numpy())
    assert len(public) == 50
    assert not set(public) & set(number(got.x.numpy()))
    assert got.public.y is None
    told = build_federation(
        base, "iid", 4, public="held-out", public_rows=50, scale="none", labelled=True
    ).public
    assert np.array_equal(told.y.numpy(), base.y[number(told.x.numpy())])
    assert told.checksum != got.public.checksum


def test_a_cut_down_copy_serves_as_public_data(tmp_path):
    for part, rows in (("train", 30), ("test", 10)):
        (tmp_path / "cifar100").mkdir(exist_ok=True)
        (tmp_path / "cifar100" / f"{part}.bin").write_bytes(bytes(3074 * rows))
    got = build_federation(coded(side=32, channels=3), "iid", 4, public="cifar100", folder=tmp_path)
    assert got.public.x.shape == (40, 3, 32, 32)


@pytest.mark.parametrize(("side", "channels"), [(28, 1), (8, 3), (4, 3), (6, 1)])
def test_other_images_take_the_private_shape(side, channels):
    got = build_federation(
        coded(side=side, channels=channels), "iid", 4, public="digits", public_rows=100
    )
    assert got.public.x.shape == (100, channels, side, side)
    assert abs(got.public.x.mean().item()) < 1e-4
    assert torch.equal(got.public.x[:, 0], got.public.x[:, -1])


def test_public_images_may_have_a_scale_of_their_own():
    base = coded(side=8)
    raw = build_federation(base, "iid", 4, public="digits", public_rows=100, public_scale="none")
    same = build_federation(base, "iid", 4, public="digits", public_rows=100, scale="none")
    assert raw.public.x.max() == 16
    assert torch.equal(raw.public.x, same.public.x)
    assert raw.x.max() < 10 < same.x.max()
    with pytest.raises(BadInput, match="public_scale = 'none' has no effect without public images"):
        build_federation(base, "iid", 4, public_scale="none")


def test_images_are_padded_and_cut_evenly():
    x = np.arange(1, 17, dtype=np.uint8).reshape(1, 1, 4, 4)
    assert np.array_equal(public.resize_images(x, (1, 6, 6))[0, 0, 1:5, 1:5], x[0, 0])
    assert public.resize_images(x, (1, 6, 6)).sum() == x.sum()
    assert np.array_equal(public.resize_images(x, (1, 4, 3))[0, 0], x[0, 0, :, :3])
    assert np.array_equal(
        public.resize_images(x, (1, 2, 2))[0, 0], [[4, 6], [12, 14]]
    )  # means of 2 x 2 blocks, rounded to even
