"""Laws of a federation's properties: training rows alone count, and they mean what they say."""

import numpy as np
import torch

from coterie.experiment.config import Experiment, change_options
from coterie.lab.arena.properties import label_divergence, measure_properties
from coterie.running.assembly import load_federation

WORDS = {
    "num_clients": 5,
    "rows": 420,
    "hidden": 8,
    "path": "vectorized",
    "width": 20,
    "compile": "no",
    "threads": 1,
}


def dealt(split, **more):
    experiment = change_options(Experiment(), {"partition": split, **WORDS, **more})
    return experiment, load_federation(experiment)


def test_garbage_in_rows_that_no_client_trains_on_changes_nothing():
    experiment, federation = dealt("classes")
    before = measure_properties(experiment, federation)
    x, y = federation.x.clone(), federation.y.clone()
    held = np.concatenate([*federation.test, *federation.validation, *federation.select])
    x[torch.as_tensor(held)] = 1e3
    y[torch.as_tensor(held)] = 7
    assert measure_properties(experiment, federation._replace(x=x, y=y)) == before
    trained = torch.as_tensor(np.concatenate(federation.train))
    x[trained] = 1 - x[trained]
    assert measure_properties(experiment, federation._replace(x=x, y=y)) != before


def test_label_divergence_is_low_for_alike_clients_and_high_for_two_classes_each():
    assert label_divergence(dealt("iid")[1]) < 0.25
    assert label_divergence(dealt("pairs")[1]) > 0.6


def test_of_numbers_divergence_is_the_share_of_variance_between_clients():
    _, federation = dealt("iid")
    numbers = torch.zeros(len(federation.y))
    for k, rows in enumerate(federation.train):
        numbers[torch.as_tensor(rows)] = float(k)
    apart = federation._replace(y=numbers, classes=0)
    assert label_divergence(apart) == 1.0


def test_local_wins_the_probe_where_clients_contradict_each_other_and_loses_where_they_agree():
    rate = {"lr": 0.3}
    assert measure_properties(*dealt("pairs", **rate)).gain > 0
    assert measure_properties(*dealt("iid", **rate)).gain < 0


def test_a_client_whose_rows_give_no_number_leaves_the_probe_to_the_others():
    experiment, federation = dealt("pairs", lr=0.3)
    train = list(federation.train)
    train[0] = train[0][:1]  # nothing is held out of one row
    assert measure_properties(experiment, federation._replace(train=train)).gain > 0


def test_gradients_of_alike_clients_are_more_similar():
    assert (
        measure_properties(*dealt("iid")).similarity
        > measure_properties(*dealt("pairs")).similarity + 0.1
    )
