"""What is said of when to use a method holds of the method."""

import pytest

from coterie.core.method import stages
from coterie.methods.guide import GUIDE, NEEDS
from coterie.methods.registry import METHODS
from helpers.federations import MODELS, OPTIONS, TRAIN, tiny_model


def test_every_method_of_the_package_has_its_advice():
    own = [name for name, build in METHODS.items() if build.__module__.startswith("coterie.")]
    assert set(own) == set(GUIDE)
    assert all(len(advice.when) <= 78 for advice in GUIDE.values())


@pytest.mark.parametrize("name", sorted(GUIDE))
def test_the_guide_says_what_the_method_declares(name):
    model = MODELS.get(name, tiny_model)()
    program = stages(METHODS[name](model, TRAIN, **OPTIONS.get(name, {})))
    declared = set().union(*(stage.method.needs for stage in program))
    assert declared == set(GUIDE[name].needs)
    assert declared <= set(NEEDS)
