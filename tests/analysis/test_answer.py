"""The answer of a comparison: one name, chosen on select rows, and what test rows show of it."""

from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.analysis.answer import MethodCost, claim_of, find_answer, format_answer, measure_of
from coterie.analysis.scores import find_score
from coterie.core.errors import BadInput
from helpers.thesis import table51

calm = settings(deadline=None)  # no test may fail because the machine is busy


def spent(names, **known):
    return {name: MethodCost(known.get(name, 0 if name == "local" else 1e6), 100) for name in names}


def federation(gain, seeds=2, clients=12):
    """FedAvg, Local and a method ahead of both by `gain` for everyone, give or take."""
    base = np.random.default_rng(0).uniform(0.4, 0.6, (seeds, clients))
    own = base + gain + np.linspace(-0.02, 0.02, clients)
    return {"fedavg": base, "local": base - 0.05, "mine": own}


def test_a_clear_lead_is_shown_with_what_it_gains_and_costs():
    test = federation(0.2)
    found = find_answer(test, test, spent(test, mine=2e6), fixed_partition=True)
    assert (found.use, found.kind, found.claim.other) == ("mine", "better", "fedavg")
    assert (found.claim.better, found.claim.worse, found.claim.of) == (12, 0, 12)
    text = format_answer(found)
    assert text == str(found)
    assert text.startswith(
        "Use mine: it is significantly better than FedAvg. On test rows it has accuracy "
    )
    assert "+20.0 points [+19.3, +20.7] (p = 0.00049, 12 clients)" in text
    assert "better for 12 of 12 clients, worse for 0. It costs 2.0 MB of traffic." in text
    assert "100 % of resamples of the clients choose it." in text
    assert "\n" not in text


def test_a_lead_that_test_rows_do_not_show_is_called_a_bet():
    select, test = federation(0.2), federation(0.0005, seeds=1)
    test = {name: np.repeat(block, 2, 0) for name, block in test.items()}
    found = find_answer(test, select, spent(test), fixed_partition=True)
    assert (found.use, found.kind) == ("mine", "bet")
    assert "Use mine as the best bet: it is not significantly better than FedAvg here." in str(
        found
    )
    assert "not significant over 12 clients" in str(found)


def test_a_choice_that_test_rows_refute_is_withdrawn():
    found = find_answer(
        federation(-0.2), federation(0.2), spent(federation(0)), fixed_partition=True
    )
    assert (found.use, found.kind, found.choice.name) == (None, "withdrawn", "mine")
    assert str(found).startswith("No method can be named: select rows choose mine, and test rows")


def test_a_few_seeds_with_new_splits_are_not_called_significant():
    test = federation(0.2)
    found = find_answer(test, test, spent(test), fixed_partition=False)
    assert (found.use, found.kind) == ("mine", "bet")  # two seeds cannot show a difference
    assert "not significant over 2 seeds" in str(found)
    assert "better for 24 of 24 clients of 2 partitions, worse for 0." in str(found)


def test_the_standard_error_is_over_what_was_resampled():
    """Client 1 of one partition is not client 1 of another: only the two seeds are units there."""
    test = federation(0.2)
    test["mine"][1] -= 0.05
    errors = {fixed: find_answer(test, test, spent(test), fixed).error for fixed in (True, False)}
    clients, seeds = test["mine"].mean(0), test["mine"].mean(1)
    assert errors[True] == pytest.approx(clients.std(ddof=1) / np.sqrt(12))
    assert errors[False] == pytest.approx(seeds.std(ddof=1) / np.sqrt(2))


@pytest.mark.parametrize(("clients", "few"), [(2, True), (5, True), (6, False), (12, False)])
def test_so_few_clients_that_no_test_could_find_anything_are_the_reason_that_is_given(clients, few):
    """All better is the most a signed-rank test can see: 2 / 2^n, which five clients do not get
    below one in twenty.
    """
    test = federation(0.2, clients=clients)
    found = find_answer(test, test, spent(test), fixed_partition=True)
    assert found.claim.better == clients
    assert found.claim.undecidable == few == (found.kind == "bet")
    said = f"{clients} clients are too few for a difference from FedAvg to be significant."
    assert (said in str(found)) == few


def test_what_is_gained_over_the_other_baseline_is_said_too():
    test = federation(0.2)
    found = find_answer(test, test, spent(test), fixed_partition=True)
    assert (found.claim.other, found.lesser.other) == ("fedavg", "local")
    said = "Over local training: +25.0 points [+24.3, +25.7], better for 12 of 12 clients, worse"
    assert said in str(found)
    del test["local"]
    found = find_answer(test, test, spent(test), fixed_partition=True)
    assert found.lesser is None
    assert "Over local" not in str(found)


def test_where_nothing_beats_local_training_it_is_used_and_the_closest_is_told():
    local = np.linspace(0.7, 0.9, 20)
    near = local + np.where(np.arange(20) % 2, 0.03, -0.02)
    near[0] += 0.05
    test = {"local": local, "fedavg": local - 0.1, "near": near}
    found = find_answer(test, {**test, "near": local}, spent(test, near=5e6), fixed_partition=True)
    assert (found.use, found.kind, found.closest.method) == ("local", "baseline", "near")
    text = str(found)
    assert text.startswith("Use local: no method is significantly better than local training here.")
    assert "Closest above: near, +0.8 points [" in text
    assert "not significant over 20 clients." in text
    assert "If the worst client matters most: near gives it 70.1 % instead of 70.0 %" in text
    assert "for 5.0 MB of traffic." in text


def test_methods_that_are_worse_for_everybody_are_not_named():
    test = federation(-0.2)
    found = find_answer(test, test, spent(test), fixed_partition=True)
    assert (found.use, found.kind) == ("fedavg", "baseline")
    assert "Use fedavg: no method is better here." in str(found)
    assert "mine" not in str(found)


@calm
@given(seed=st.integers(0, 10_000), fixed=st.booleans())
def test_the_name_is_chosen_on_select_rows_only(seed, fixed):
    rng = np.random.default_rng(seed)
    names = ("local", "fedavg", "a", "b")
    test, other, select = ({n: rng.uniform(0, 1, (3, 6)) for n in names} for _ in range(3))
    cost = {n: MethodCost(float(rng.integers(0, 3))) for n in names}
    first, second = (find_answer(t, select, cost, fixed) for t in (test, other))
    np.testing.assert_equal(first.choice, second.choice)  # NaN is NaN
    for found in (first, second):  # test rows may withdraw a name, but never give another
        assert found.use == (None if found.kind == "withdrawn" else found.choice.name)


def test_a_method_that_fits_its_validation_rows_is_not_chosen_for_it():
    """As PersFL, which picks its teacher on validation rows: there it is perfect, elsewhere not."""
    rng = np.random.default_rng(0)
    honest = rng.normal(0.8, 0.01, (1, 20))
    test = {"local": honest - 0.1, "fedavg": honest - 0.1, "honest": honest, "fits": honest - 0.03}
    validation = {**test, "fits": np.ones((1, 20))}
    select = {name: a + rng.normal(0, 0.005, a.shape) for name, a in test.items()}
    assert find_answer(test, validation, spent(test), True).use == "fits"
    assert find_answer(test, select, spent(test), True).use == "honest"


def test_a_method_that_only_guesses_is_not_chosen():
    test = federation(0.0)
    found = find_answer(test, test, spent(test), True, guess=0.99)
    assert (found.use, found.kind) == (None, "guessing")
    assert "nothing has learned more than always guessing" in str(found)
    assert "(99.0 %)" in str(found)
    high = {**test, "local": test["local"] - 0.3}
    lucky = {**high, "local": np.ones_like(high["local"])}  # on select rows alone
    assert find_answer(high, lucky, spent(high), True).use == "local"
    assert find_answer(high, lucky, spent(high), True, guess=0.3).use != "local"


def test_more_steps_than_the_baseline_are_told():
    test = federation(0.2)
    cost = {**spent(test), "mine": MethodCost(1e6, 300)}
    assert "and 3.0 times the gradient steps of fedavg" in str(find_answer(test, test, cost, True))
    longer = {**test, "fedavg@long": test["fedavg"] + 0.1}
    cost |= {"fedavg@long": MethodCost(3e6, 300)}
    found = find_answer(longer, longer, cost, True)
    assert found.claim.other == "fedavg@long"
    assert "significantly better than FedAvg (fedavg@long)" in str(found)
    assert "gradient steps" not in str(found)


def test_a_loss_is_better_where_it_is_lower():
    loss = {name: 1 - a for name, a in federation(0.2).items()}
    found = find_answer(loss, loss, spent(loss), True, measure_of(find_score("loss")))
    assert (found.use, found.kind) == ("mine", "better")
    assert found.value == pytest.approx(loss["mine"].mean())
    assert "it has loss 0.3" in str(found)
    assert "+0.2 [+0.193, +0.207]" in str(found)


def test_without_select_rows_nothing_is_chosen():
    test = federation(0.2)
    found = find_answer(test, {}, spent(test), True)
    assert (found.use, found.kind) == (None, "open")
    assert "raise --validation" in str(found)
    none = {name: np.full_like(a, nan) for name, a in test.items()}
    assert find_answer(test, none, spent(test), True).use is None


def test_without_baselines_a_method_is_chosen_but_nothing_is_claimed():
    test = {"a": [[0.5, 0.6]], "b": [[0.7, 0.8]]}
    found = find_answer(test, test, {"a": MethodCost(1), "b": MethodCost(1)}, True)
    assert (found.use, found.claim) == ("b", None)
    assert "what it gains over them is not known" in str(found)


def test_regret_is_what_the_highest_test_mean_has_more():
    select = {"local": [[0.9, 0.9]], "fedavg": [[0.5, 0.5]], "a": [[0.6, 0.6]]}
    test = {"local": [[0.7, 0.7]], "fedavg": [[0.5, 0.5]], "a": [[0.8, 0.8]]}
    found = find_answer(test, select, spent(test), True)
    assert (found.use, found.best) == ("local", "a")
    assert found.regret == pytest.approx(0.1)


def test_an_answer_needs_what_every_method_cost():
    test = federation(0.2)
    with pytest.raises(BadInput, match="'mine' has values, but nothing says what it cost"):
        find_answer(test, test, {"fedavg": MethodCost(1), "local": MethodCost(0)}, True)


def test_who_gains_in_table_5_1_is_counted():
    test = {name: np.atleast_2d(a) for name, a in table51().items()}
    found = claim_of("alg2", "local", test, True)
    gaps = test["alg2"] - test["local"]
    assert (found.better, found.worse) == ((gaps > 1e-9).sum(), (gaps < -1e-9).sum())
    assert not isnan(found.p)
