"""The answer at a glance says what its sentences say."""

import numpy as np
import pytest

from coterie.analysis.answer import MethodCost, find_answer
from coterie.analysis.tiles import summarize_answer

CLIENTS = np.linspace(0.5, 0.7, 20)[None]
COST = {
    "local": MethodCost(0.0, 10.0),
    "fedavg": MethodCost(2e6, 10.0),
    "ditto": MethodCost(4e6, 20.0),
}


def answer_of(ditto: float, **more):
    values = {"local": CLIENTS, "fedavg": CLIENTS - 0.1, "ditto": CLIENTS + ditto}
    return find_answer(values, values, COST, fixed_partition=True, **more)


def test_a_method_that_is_better_has_its_four_figures():
    answer = answer_of(0.1)
    told = summarize_answer(answer)
    assert told.headline == "Use ditto: it is significantly better than local training."
    assert str(answer).startswith(told.headline)
    assert [tile.label for tile in told.tiles] == [
        "accuracy",
        "gain over local",
        "clients",
        "traffic",
    ]
    assert [tile.value for tile in told.tiles] == [
        "70.0 %",
        "+10.0 points",
        "20 better, 0 worse",
        "4.0 MB",
    ]
    assert "2.0 x the gradients" in told.tiles[-1].note
    assert told.details[-1].startswith("Chosen on select rows")


def test_who_knows_nothing_stands_beside_the_figures():
    told = summarize_answer(answer_of(0.1, guess=0.55))
    assert told.details[-1] == "Always guessing a client's most frequent class gives 55.0 %."


def test_a_baseline_has_the_closest_method_beside_it():
    told = summarize_answer(answer_of(-0.05))
    assert told.headline.startswith("Use local: no method is better here")
    labels = [tile.label for tile in told.tiles]
    assert labels == ["accuracy", "gain over fedavg", "clients", "closest: ditto", "traffic"]
    assert told.tiles[3].value == "-5.0 points"
    assert told.tiles[-1].note.startswith("of ditto")


@pytest.mark.parametrize("guess", [0.9])
def test_where_nothing_is_named_the_sentence_is_all_there_is(guess):
    told = summarize_answer(answer_of(0.1, guess=guess))
    assert told.headline.startswith("Use none of them")
    assert told.tiles == []
