"""The picture of a split."""

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import BadInput
from coterie.data import own
from coterie.data.dealing import build
from coterie.data.federation import class_counts
from coterie.data.picture import split_picture
from helpers.datasets import coded, features


def test_pictures_of_few_and_many_clients(tmp_path):
    for clients in (5, 300):
        base = coded(n=6000, classes=10)
        path = split_picture(
            build(base, "dirichlet", clients, options={"alpha": 1.0, "smallest": 3}, validation=0),
            tmp_path / f"{clients}.png",
        )
        with Image.open(path) as picture:
            assert picture.width >= 700
            assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 10
    assert split_picture(build("gaussian"), tmp_path / "g.png").stat().st_size > 5000


def test_a_small_picture_writes_names_and_counts_and_is_the_same_every_time(tmp_path):
    sites = own.from_arrays(
        np.zeros((60, 2)), (["cat"] * 13 + ["dog"] * 17) * 2, ["$5 site"] * 30 + [r"$\site$ 6"] * 30
    )
    got = build(sites)
    first, again = (split_picture(got, tmp_path / f"{i}.svg").read_bytes() for i in (1, 2))
    assert first == again
    text = first.decode()
    assert all(
        f"<!-- {word} -->" in text for word in ("$5 site", r"$\site$ 6", "cat", "dog", "13", "17")
    )
    assert class_counts(got).tolist() == [[13, 17], [13, 17]]


def test_a_picture_needs_a_known_suffix_and_a_folder(tmp_path):
    got = build(features())
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        split_picture(got, tmp_path / "a.gif")
    with pytest.raises(BadInput, match="no folder"):
        split_picture(got, tmp_path / "no" / "a.png")
