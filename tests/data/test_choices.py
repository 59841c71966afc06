"""Choices that cannot work are refused."""

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.data.pipeline import build_federation
from helpers.datasets import features


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("at most 179 clients of 10 rows", {"num_clients": 5000}),
        ("leave no train part", {"validation": 0.5, "test": 0.5}),
        ("test = 0: give shares of a client's rows, test above 0 and both below 1", {"test": 0}),
        ("validation = -0.1", {"validation": -0.1}),
        ("did you mean 'pixel'", {"scale": "pixels"}),
        ("pool = 'trane': give all or train", {"pool": "trane"}),
        ("did you mean 'runs'", {"cut": "run"}),
        ("rotate = 3", {"rotate": 3}),
        ("permute = 0", {"permute": 0}),
        ("cannot form", {"num_clients": 5, "rotate": 4, "permute": 2}),
        ("0 official test rows", {"shared_test": 5}),
        ("rows = 99,999", {"rows": 99_999}),
        ("needs public_rows", {"public": "held-out"}),
        ("is the private data set itself", {"public": "digits"}),
        ("is unknown", {"public": "mnizt", "public_rows": 5}),
        ("did you mean 'digits'", {"dataset": "digit"}),
        ("did you mean 'dirichlet'", {"partition": "dirchlet"}),
        ("did you mean 'alpha'", {"partition": "dirichlet", "options": {"alfa": 1}}),
        ("there is no file or folder", {"dataset": "nowhere/at/all.csv"}),
        ("natural clients", {"partition": "user"}),
        (
            "has 4 rows, none of them in its validation part",
            {"partition": "iid", "num_clients": 500, "validation": 0.01},
        ),
    ],
)
def test_bad_choices_are_refused_in_one_clear_line(settings, options):
    with pytest.raises(BadInput) as caught:
        build_federation(**options)
    assert settings in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "change", "options"),
    [
        (
            "NaN or infinity in row 7",
            {"x": np.where(np.arange(300)[:, None] == 7, np.nan, 1.0).astype(np.float32)},
            {},
        ),
        ("labels 0 to 2, but 2 classes", {"classes": 2}, {}),
        (
            "client 0 ('0') has 1 row, none of them in its train part",
            {"users": np.arange(300)},
            {},
        ),
        ("is for images", {}, {"scale": "unit"}),
        ("is for images", {}, {"scale": "channel"}),
        ("needs square images", {}, {"rotate": 4}),
        ("channels = 3", {}, {"channels": 3}),
        ("has no training rows here", {"train": np.zeros(300, bool)}, {"pool": "train"}),
        ("cannot stand beside inputs", {}, {"public": "digits"}),
        (
            "needs class labels",
            {"classes": 0, "y": np.ones(300, np.float32)},
            {"partition": "classes"},
        ),
        ("permute = 2", {"classes": 0, "y": np.ones(300, np.float32)}, {"permute": 2}),
        ("belong to a named data set", {}, {"data_options": {"alpha": 1}}),
    ],
)
def test_bad_data_are_refused_in_one_clear_line(settings, change, options):
    with pytest.raises(BadInput) as caught:
        build_federation(features()._replace(**change), **options)
    assert settings in str(caught.value)
    assert "\n" not in str(caught.value)
