"""The picture of a split."""

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import BadInput
from coterie.data.federation import count_classes
from coterie.data.partition_plot import plot_partition
from coterie.data.pipeline import build_federation
from coterie.data.read import user_data
from helpers.datasets import coded, features


def test_pictures_of_few_and_many_clients(tmp_path):
    for clients in (5, 300):
        base = coded(n=6000, classes=10)
        path = plot_partition(
            build_federation(
                base, "dirichlet", clients, options={"alpha": 1.0, "smallest": 3}, validation=0
            ),
            tmp_path / f"{clients}.png",
        )
        with Image.open(path) as picture:
            assert picture.width >= 700
            assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 10
    assert plot_partition(build_federation("gaussian"), tmp_path / "g.png").stat().st_size > 5000


def test_a_small_picture_writes_names_and_counts_and_is_the_same_every_time(tmp_path):
    sites = user_data.from_arrays(
        np.zeros((60, 2)), (["cat"] * 13 + ["dog"] * 17) * 2, ["$5 site"] * 30 + [r"$\site$ 6"] * 30
    )
    got = build_federation(sites)
    first, again = (plot_partition(got, tmp_path / f"{i}.svg").read_bytes() for i in (1, 2))
    assert first == again
    text = first.decode()
    assert all(
        f"<!-- {option} -->" in text
        for option in ("$5 site", r"$\site$ 6", "cat", "dog", "13", "17")
    )
    assert count_classes(got).tolist() == [[13, 17], [13, 17]]


def test_a_picture_needs_a_known_suffix_and_a_folder(tmp_path):
    got = build_federation(features())
    with pytest.raises(BadInput, match=r"\.png or \.svg"):
        plot_partition(got, tmp_path / "a.gif")
    with pytest.raises(BadInput, match="no folder"):
        plot_partition(got, tmp_path / "no" / "a.png")
