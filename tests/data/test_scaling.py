"""What inputs are scaled by."""

import numpy as np
import pytest
import torch

from coterie.data.pipeline import build_federation
from coterie.data.read.catalog import DATASETS
from helpers.datasets import coded, features, number


def test_scales():
    base = coded(channels=3, n=300)
    raw = base.x[number(build_federation(base, "iid", 3, scale="none").x.numpy())].astype(
        np.float64
    )

    def scaled(kind, name="coded"):
        return build_federation(base._replace(name=name), "iid", 3, scale=kind).x.numpy()

    assert np.allclose(scaled("unit"), raw / 255, atol=1e-6)
    assert np.allclose(scaled("half"), raw / 127.5 - 1, atol=1e-6)
    pooled = (raw - raw.mean(0)) / (raw.std(0) + 0.001)
    assert np.allclose(scaled("pixel-pool"), pooled, atol=1e-4)
    got = build_federation(base, "iid", 3, scale="pixel")
    train = np.concatenate(got.train)
    seen = raw[train]
    assert np.allclose(got.x.numpy(), (raw - seen.mean(0)) / seen.std(0), atol=1e-4)
    channel = scaled(None)[train]
    assert np.allclose(channel.mean((0, 2, 3)), 0, atol=1e-4)
    assert np.allclose(channel.std((0, 2, 3)), 1, atol=1e-4)
    mean, deviation = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])
    named = (raw / 255 - mean[:, None, None]) / deviation[:, None, None]
    assert np.allclose(scaled("channel", "cifar10"), named, atol=1e-5)


def test_features_are_standardised_by_training_rows_unless_told_otherwise():
    base = features()
    assert torch.equal(build_federation(base, scale="none").x, torch.from_numpy(base.x))
    got = build_federation(base)
    seen = got.x[np.concatenate(got.train)]
    assert seen.mean(0).abs().max() < 1e-5
    assert (seen.std(0, correction=0) - 1).abs().max() < 1e-5


@pytest.mark.parametrize(
    "name", sorted(n for n, s in DATASETS.items() if s.scale not in ("standard", "client"))
)
def test_no_named_data_set_is_scaled_by_its_test_rows(name):
    """Bright rows of all other parts change no training input of images of that name."""
    base = coded()._replace(name=name)
    clean = build_federation(base, "iid", 4, seed=3)
    seen = np.concatenate(clean.train)
    held = ~np.isin(np.arange(len(base.y)), clean.rows[seen])
    bright = base._replace(x=np.where(held[:, None, None, None], 255, base.x).astype(np.uint8))
    spoilt = build_federation(bright, "iid", 4, seed=3)
    assert clean.preparation == spoilt.preparation
    assert torch.equal(clean.x[seen], spoilt.x[seen])


@pytest.mark.parametrize("scale", ["pixel", "channel", "pixel-pool", "channel-pool"])
def test_statistics_come_from_the_pool_not_from_what_lies_outside_it(scale):
    base = coded(test=100)
    bright = base._replace(
        x=np.where(base.train[:, None, None, None], base.x, 255).astype(np.uint8)
    )
    kept = [build_federation(b, "iid", 4, pool="train", scale=scale).x for b in (base, bright)]
    assert torch.equal(*kept)
