"""Garbage in test and select rows changes no model, tuning, teacher or newcomer."""

import numpy as np
import pytest
import torch

from coterie.comparison.execute import compare
from coterie.data.newcomers import keep_out, with_newcomers
from coterie.experiment.config import Experiment, change_options
from coterie.methods.registry import METHODS
from coterie.running.newcomer_training import WAYS, finished_run_of, train_newcomers
from helpers.federations import assert_same, personal, play, tiny
from helpers.runs import FAST

LATE = np.array([2, 5])
every_method = pytest.mark.parametrize("name", sorted(METHODS))


def with_select(federation):
    """Half of every client's validation rows are select rows."""
    halves = [np.array_split(rows, 2) for rows in federation.validation]
    first, second = (list(part) for part in zip(*halves, strict=True))
    return federation._replace(validation=first, select=second)


def spoiled(federation):
    """The same federation with garbage in all test and select rows, those of newcomers too."""
    x, y = federation.x.clone(), federation.y.clone()
    late = federation.newcomers
    for one in (federation, *([late] if late else [])):
        for rows in (*one.test, *one.select):
            x[rows] = 1e6 if x.is_floating_point() else 0
            y[rows] = 0
    return federation._replace(x=x, y=y)


@every_method
def test_models_and_teachers_do_not_depend_on_test_and_select_rows(name):
    federation = with_select(tiny())
    assert all(len(rows) for rows in federation.select)
    assert_same(personal(play(name, federation)), personal(play(name, spoiled(federation))), 0)


@every_method
def test_newcomers_models_do_not_depend_on_test_and_select_rows(name):
    found = []
    for change in (lambda one: one, spoiled):
        loop = play(name, change(keep_out(with_select(tiny(7)), LATE)))
        loop.schedule = loop.schedule._replace(newcomer_rounds=2)
        run = finished_run_of(loop, with_newcomers(loop.federation))
        found.append([list(train_newcomers(run, way).points()) for way in WAYS])
    for one, other in zip(*found, strict=True):
        for (_, clients, views), (_, _, others) in zip(one, other, strict=True):
            assert clients
            mine, theirs = views["personal"].params, others["personal"].params
            assert all(torch.equal(mine[k], theirs[k]) for k in mine)


def test_tuning_does_not_depend_on_test_and_select_rows(tmp_path):
    grids = {"ditto": {"lam": [0.01, 1.0]}, "persfl": {"distil_epochs": [1, 3]}}
    settings = FAST | {"batch_size": 4, "hidden": 5, "rounds": 2, "checkpoint": 1, "model": "dnn"}
    asked = {name: change_options(Experiment(), settings | {"method": name}) for name in grids}
    federation, found = with_select(tiny()), []
    for place, data in (("plain", federation), ("spoiled", spoiled(federation))):
        done = compare(asked, [0], tmp_path / place, grids=grids, data=data)
        chosen = {name: runs[0].experiment.options for name, runs in done.runs.items()}
        models = (tmp_path / place).glob("*/models/*.safetensors")
        found.append((chosen, {p.relative_to(tmp_path / place): p.read_bytes() for p in models}))
    assert found[0] == found[1]
    assert all(found[0])
