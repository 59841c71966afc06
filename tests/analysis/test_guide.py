"""Laws of the guide: it goes by what is near, and is judged on what it has not seen."""

import numpy as np
import pytest

from coterie.lab.arena.rules import (
    SINGLE,
    ArenaScores,
    JudgedRule,
    Properties,
    find_lead,
    judge_rules,
    nearest_federations,
    rank_methods,
)

NAMES = ("a", "b", "c", "d")


def arena(points, places):
    """An arena of four federations; only their label divergence differs."""
    properties = [Properties(2.0, place, 0.0, 0.5, 0.1) for place in places]
    return ArenaScores(NAMES, np.array(properties), ("local", "fedavg", "ditto"), np.array(points))


TWO_KINDS = arena(
    [[90.0, 60, 80], [91.0, 61, 81], [50.0, 80, 70], [51.0, 81, 71]], [0.9, 0.8, 0.1, 0.2]
)


def test_a_rule_that_looks_goes_by_the_nearest_federations():
    here = Properties(2.0, 0.85, 0.0, 0.5, 0.1)
    assert set(nearest_federations(2, TWO_KINDS, here)) == {0, 1}
    assert rank_methods("nearest 1", TWO_KINDS, here)[0] == "local"
    assert rank_methods("nearest 1", TWO_KINDS, here._replace(divergence=0.1))[0] == "fedavg"


def test_methods_are_ordered_by_regret_where_the_rule_asks():
    for f in range(len(NAMES)):
        found = rank_methods("nearest 1", TWO_KINDS, Properties(*TWO_KINDS.properties[f]))
        regrets = [TWO_KINDS.regret[f, TWO_KINDS.methods.index(name)] for name in found]
        assert regrets == sorted(regrets)


def test_the_best_single_method_is_the_same_whatever_the_data():
    named = {tuple(rank_methods(SINGLE, TWO_KINDS, Properties(*p))) for p in TWO_KINDS.properties}
    assert len(named) == 1


def test_where_properties_tell_kinds_apart_the_nearest_beat_the_best_single_method():
    judged = {j.rule: j for j in judge_rules(TWO_KINDS)}
    assert judged["nearest 1"].mean == 0
    assert judged["nearest 1"].chosen == ("local", "local", "fedavg", "fedavg")
    assert judged[SINGLE].mean > 5
    found = find_lead(judge_rules(TWO_KINDS))
    assert found.taken == "nearest 1"
    assert found.gain == pytest.approx(judged[SINGLE].mean)


def test_where_properties_tell_nothing_the_guide_names_the_best_single_method():
    known = arena(
        [[90.0, 60, 89], [60.0, 91, 89], [90.0, 60, 89], [60.0, 91, 89]], [0.1, 0.11, 0.9, 0.91]
    )
    assert find_lead(judge_rules(known)).taken == SINGLE
    assert rank_methods(SINGLE, known, Properties(*known.properties[0]))[0] == "ditto"


def test_a_lead_that_may_be_chance_is_not_followed():
    """The nearest federation gains 20 points on one federation of six and loses a little on the
    others.
    """
    ahead = JudgedRule("nearest 1", (), np.array([0.0, 4, 4, 4, 4, 4]))
    single = JudgedRule(SINGLE, (), np.array([24.0, 3, 3, 3, 3, 3]))
    found = find_lead([ahead, single])
    assert found.gain == pytest.approx(39 / 6 - 20 / 6)
    assert found.gain > 0
    assert not found.counts
    assert found.taken == SINGLE
    sure = JudgedRule("nearest 1", (), single.regret - 3)
    assert find_lead([sure, single]).taken == "nearest 1"


def test_a_single_federation_leaves_nothing_to_judge_by():
    assert judge_rules(TWO_KINDS.without(0).without(0).without(0)) == []


def test_some_methods_alone_are_known_on_the_federations_where_they_ran():
    points = [[90.0, 60, np.nan], [91.0, 61, 81], [50.0, 80, 70], [51.0, 81, 71]]
    known = arena(points, [0.9, 0.8, 0.1, 0.2]).only(["ditto"])
    assert known.methods == ("ditto",)
    assert known.federations == ("b", "c", "d")
    assert not known.regret.any()


def test_a_rule_never_sees_the_federation_that_is_left_out():
    """Alone, a federation's winner cannot be known: here it wins nowhere else."""
    known = arena(
        [[99.0, 60, 50], [50.0, 60, 55], [50.0, 60, 55], [50.0, 60, 55]], [0.9, 0.1, 0.1, 0.1]
    )
    for rule in judge_rules(known):
        if not rule.rule.startswith("always"):
            assert rule.chosen[0] == "fedavg"
            assert rule.regret[0] == pytest.approx(39)


def test_a_method_that_could_not_run_is_as_bad_as_the_worst():
    known = arena([[90.0, 60, np.nan]] * 4, [0.1, 0.2, 0.3, 0.4])
    assert known.regret[0].tolist() == [0, 30, 30]


def test_points_behind_are_those_of_the_federations_where_a_method_ran():
    known = arena([[90.0, 60, np.nan], [90.0, 60, 85]] * 2, [0.1, 0.2, 0.3, 0.4])
    assert known.mean_behind("ditto") == 5
    assert known.mean_behind("fedavg") == 30
