"""What is said of when to use a method holds of the method."""

import pytest

from coterie.cli.methods import NEED_LABELS
from coterie.core.method import stages_of
from coterie.methods.declare import when_of
from coterie.methods.listing import list_methods
from coterie.methods.registry import METHODS
from helpers.federations import MODELS, OPTIONS, TRAIN, tiny_model


def test_every_method_of_the_package_has_its_advice():
    own = [build for build in METHODS.values() if build.__module__.startswith("coterie.")]
    assert len(own) >= 34
    assert all(0 < len(when_of(build)) <= 78 for build in own)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_list_says_what_the_method_declares(name):
    model = MODELS.get(name, tiny_model)()
    program = stages_of(METHODS[name](model, TRAIN, **OPTIONS.get(name, {})))
    declared = set().union(*(stage.method.needs for stage in program))
    (found,) = [one for one in list_methods() if one.name == name]
    assert declared == set(found.needs)
    assert declared <= set(NEED_LABELS)
    assert found.when == when_of(METHODS[name])
