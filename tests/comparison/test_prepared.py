"""The runs of a comparison are put together once, and no more data are held than fit."""

from dataclasses import replace

import pytest

from coterie.comparison import prepared
from coterie.comparison.execute import compare
from coterie.comparison.plan import plan
from coterie.comparison.prepared import Prepared
from helpers.runs import experiment


@pytest.fixture
def made(monkeypatch):
    """The data and the runs that were put together, as (what, seed)."""
    found = []
    for word in ("gather", "assemble"):
        original = getattr(prepared, word)

        def counted(experiment, *rest, word=word, original=original):
            found.append((word, experiment.seed))
            return original(experiment, *rest)

        monkeypatch.setattr(prepared, word, counted)
    return found


def test_a_comparison_puts_every_run_together_once(made, tmp_path):
    compare(plan(["local", "fedavg"], experiment(rounds=1)), [0, 1], tmp_path / "c")
    assert sorted(made) == [("assemble", 0)] * 2 + [("assemble", 1)] * 2 + [
        ("gather", 0),
        ("gather", 1),
    ]


def test_data_that_do_not_fit_are_never_held_for_two_seeds(made, monkeypatch, tmp_path):
    monkeypatch.setattr(prepared, "ROOM", 1)
    store = Prepared(None, None)
    for seed in (0, 1, 0):
        store.assembly(replace(experiment(), seed=seed))
        assert len(store.kept) == 1
    assert [seed for word, seed in made if word == "gather"] == [0, 1, 0]
    monkeypatch.setattr(prepared, "ROOM", 2**30)
    first, second = (store.assembly(replace(experiment(), seed=seed)) for seed in (0, 1))
    assert store.assembly(replace(experiment(), seed=0)) is first
    assert store.assembly(replace(experiment(), seed=1)) is second


def test_seeds_that_share_their_data_hold_them_once(made):
    store = Prepared(None, None)
    runs = [store.assembly(replace(experiment(**{"data.seed": 5}), seed=seed)) for seed in (0, 1)]
    assert runs[0].federation is runs[1].federation
    assert [run.experiment.seed for run in runs] == [0, 1]
