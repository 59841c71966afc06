"""Knobs: every method has some, all inside what its options declare, around the value they have."""

from typing import Annotated, Literal

import pytest

from coterie.core.method import Train
from coterie.core.options import PositiveInt, Range, Share, coerce, declared_options
from coterie.methods.registry import METHODS
from coterie.methods.search_space import (
    EXCLUDED,
    OVERRIDES,
    SearchRange,
    build_search_space,
    derive_range,
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_knobs_inside_its_declared_ranges(name):
    builder, known = METHODS[name], declared_options(METHODS[name])
    found = build_search_space(name, builder, Train(), {})
    assert "lr" in found
    for option, knob in found.items():
        for value in knob.choices or (knob.low, knob.high):
            if option in known:
                coerce(known[option][0], value, option)
        now = known[option][1] if option in known else getattr(Train(), option)
        assert now in knob.choices if knob.choices else knob.low <= now <= knob.high


def test_what_is_narrowed_or_left_out_exists():
    every = {option for builder in METHODS.values() for option in declared_options(builder)}
    assert every >= EXCLUDED
    for name, own in OVERRIDES.items():
        assert set(own) <= set(declared_options(METHODS[name]))


def test_a_method_s_unused_words_are_not_searched():
    assert "local_epochs" not in build_search_space("selffl", METHODS["selffl"], Train(), {})
    assert "local_epochs" in build_search_space("selffl", METHODS["selffl"], Train(), {"l_base": 0})


def test_steps_are_searched_where_they_count_instead_of_epochs():
    found = build_search_space("fedavg", METHODS["fedavg"], Train(local_steps=20, lr=0.3), {})
    assert found["local_steps"] == SearchRange(5, 80)
    assert "local_epochs" not in found
    assert found["lr"] == SearchRange(0.03, 3.0)


@pytest.mark.parametrize(
    ("kind", "value", "knob"),
    [
        (Annotated[float, Range(0, 1e6)], 0.2, SearchRange(0.02, 2.0)),
        (Annotated[float, Range(0, 1e6)], 0.0, None),
        (Annotated[float, Range(0.1, 0.3)], 0.2, SearchRange(0.1, 0.3)),
        (Share, 0.5, SearchRange(0.05, 0.95)),
        (PositiveInt, 8, SearchRange(2, 32)),
        (PositiveInt, 1, SearchRange(1, 4)),
        (Literal["a", "b"], "a", SearchRange(choices=("a", "b"))),
        (bool, True, None),
        (str, "x", None),
    ],
)
def test_a_knob_follows_from_its_declaration(kind, value, knob):
    assert derive_range(kind, value) == knob


def test_rates_are_searched_by_order_of_magnitude():
    assert SearchRange(0.01, 1).log
    assert not SearchRange(0.5, 1.5).log
    assert not SearchRange(0, 1).log
    assert SearchRange(0.01, 1).near(0.123456, False) == 0.123
    assert SearchRange(1, 5).near(3.2, True) == 3
