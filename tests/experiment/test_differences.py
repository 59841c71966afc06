"""How clients differ is said of the partition that is in force, also where nobody named it."""

import pytest

from coterie.experiment.config import Experiment, change_options
from coterie.experiment.differences import describe_differences


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "3 classes each"),
        ({"partition": "classes", "classes_each": 4}, "4 classes each"),
        ({"partition": "dirichlet", "alpha": 0.3}, "classes by Dirichlet(0.3)"),
        ({"partition": "iid", "permute": 4}, "rows at random, labels permuted in 4 groups"),
        ({"partition": "iid", "rotate": 2}, "rows at random, images rotated in 2 groups"),
        ({"dataset": "fed-heart"}, "as the data name them"),
        ({"partition": "perfedavg"}, "partition perfedavg"),
    ],
)
def test_how_clients_differ(settings, says):
    assert describe_differences(change_options(Experiment(), settings)) == says
