"""Laws of the guide: it goes by what is near, and is judged on what it has not seen."""

import numpy as np
import pytest

from coterie.analysis.guide import Known, Properties, advise, best_rule, judge

NAMES = ("a", "b", "c", "d")


def arena(points, places):
    """An arena of four federations; only their label divergence differs."""
    properties = [Properties(2.0, place, 0.0, 0.5, 0.1) for place in places]
    return Known(NAMES, np.array(properties), ("local", "fedavg", "ditto"), np.array(points))


TWO_KINDS = arena(
    [[90.0, 60, 80], [91.0, 61, 81], [50.0, 80, 70], [51.0, 81, 71]], [0.9, 0.8, 0.1, 0.2]
)


def test_advice_goes_by_the_nearest_federations():
    here = Properties(2.0, 0.85, 0.0, 0.5, 0.1)
    assert advise(TWO_KINDS, here, 2).method == "local"
    assert set(advise(TWO_KINDS, here, 2).near) == {"a", "b"}
    assert advise(TWO_KINDS, here._replace(divergence=0.1), 2).method == "fedavg"


def test_where_properties_tell_kinds_apart_the_nearest_beat_the_best_single_method():
    judged = {j.rule: j for j in judge(TWO_KINDS)}
    assert judged["nearest 1"].mean == 0
    assert judged["nearest 1"].chosen == ("local", "local", "fedavg", "fedavg")
    assert judged["best single method"].mean > 5
    assert best_rule(judge(TWO_KINDS)) == 1


def test_where_properties_tell_nothing_the_guide_names_the_best_single_method():
    known = arena(
        [[90.0, 60, 89], [60.0, 91, 89], [90.0, 60, 89], [60.0, 91, 89]], [0.1, 0.11, 0.9, 0.91]
    )
    judged = judge(known)
    assert best_rule(judged) == 0
    assert advise(known, Properties(*known.properties[0]), 0).method == "ditto"


def test_a_rule_never_sees_the_federation_that_is_left_out():
    """Alone, a federation's winner cannot be known: here it wins nowhere else."""
    known = arena(
        [[99.0, 60, 50], [50.0, 60, 55], [50.0, 60, 55], [50.0, 60, 55]], [0.9, 0.1, 0.1, 0.1]
    )
    for rule in judge(known):
        if not rule.rule.startswith("always"):
            assert rule.chosen[0] == "fedavg"
            assert rule.regret[0] == pytest.approx(39)


def test_a_method_that_could_not_run_is_as_bad_as_the_worst():
    known = arena([[90.0, 60, np.nan]] * 4, [0.1, 0.2, 0.3, 0.4])
    assert known.regret[0].tolist() == [0, 30, 30]
