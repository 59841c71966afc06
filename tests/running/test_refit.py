"""Validation rows that are trained on once options are chosen."""

import numpy as np
import pytest

from coterie.core.errors import BadInput
from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import assemble, load_federation
from coterie.running.execute import execute

WORDS = {"dataset": "digits", "num_clients": 5, "validation": 0.1, "select": False, "refit": True}


def assembled(**settings):
    experiment = change_options(Experiment(), WORDS | settings)
    return assemble(experiment, load_federation(experiment)).federation


def test_a_method_that_chooses_nothing_trains_on_validation_rows_too():
    plain, refit = assembled(refit=False, method="fedavg"), assembled(method="fedavg")
    for i in range(5):
        both = np.concatenate([plain.train[i], plain.validation[i]])
        assert (refit.train[i] == both).all()
        assert len(plain.validation[i])
        assert not len(refit.validation[i])
        assert (refit.test[i] == plain.test[i]).all()


@pytest.mark.parametrize("settings", [{"method": "persfl"}, {"method": "fedfomo"}])
def test_a_method_that_chooses_on_validation_rows_keeps_them(settings):
    plain, refit = assembled(refit=False, **settings), assembled(**settings)
    assert all((a == b).all() for a, b in zip(plain.train, refit.train, strict=True))
    assert all((a == b).all() for a, b in zip(plain.validation, refit.validation, strict=True))


def test_a_trial_is_judged_on_rows_that_it_does_not_train_on():
    federation = assembled(method="fedavg", parts=["validation"])
    assert all(len(rows) for rows in federation.validation)


def test_refit_without_validation_rows_is_refused():
    with pytest.raises(BadInput, match="refit trains on validation rows too"):
        assembled(method="fedavg", validation=0.0)


@pytest.mark.parametrize("method", ["persfl", "fedfomo"])
def test_refit_of_a_single_run_that_needs_validation_rows_is_refused(method, tmp_path):
    experiment = change_options(Experiment(), WORDS | {"method": method, "rounds": 1})
    with pytest.raises(BadInput, match=f"refit = true has no effect on {method}"):
        execute(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
