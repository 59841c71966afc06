"""The runs of a comparison are put together once, and no more data are held than fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.comparison import cache
from coterie.comparison.cache import AssemblyCache
from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_experiments
from coterie.data.federation import checksum_of
from coterie.experiment import build
from coterie.experiment.config import Experiment, change_options
from coterie.running.assembly import load_federation
from helpers.runs import experiment


@pytest.fixture
def made(monkeypatch):
    """The data and the runs that were put together, as (what, seed)."""
    found = []
    for option in ("load_federation", "assemble"):
        original = getattr(cache, option)

        def counted(experiment, *rest, option=option, original=original):
            found.append((option, experiment.seed))
            return original(experiment, *rest)

        monkeypatch.setattr(cache, option, counted)
    return found


def test_a_comparison_puts_every_run_together_once(made, tmp_path):
    compare(plan_experiments(["local", "fedavg"], experiment(rounds=1)), [0, 1], tmp_path / "c")
    assert sorted(made) == [("assemble", 0)] * 2 + [("assemble", 1)] * 2 + [
        ("load_federation", 0),
        ("load_federation", 1),
    ]


def test_data_that_do_not_fit_are_never_held_for_two_seeds(made, monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "MAX_BYTES", 1)
    store = AssemblyCache(None, None)
    for seed in (0, 1, 0):
        store.assembly(replace(experiment(), seed=seed))
        assert len(store.kept) == 1
    assert [seed for option, seed in made if option == "load_federation"] == [0, 1, 0]
    monkeypatch.setattr(cache, "MAX_BYTES", 2**30)
    first, second = (store.assembly(replace(experiment(), seed=seed)) for seed in (0, 1))
    assert store.assembly(replace(experiment(), seed=0)) is first
    assert store.assembly(replace(experiment(), seed=1)) is second


def test_seeds_that_share_their_data_hold_them_once(made):
    store = AssemblyCache(None, None)
    runs = [
        store.assembly(replace(experiment(**{"dataset.seed": 5}), seed=seed)) for seed in (0, 1)
    ]
    assert runs[0].federation is runs[1].federation
    assert [run.experiment.seed for run in runs] == [0, 1]


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({}, True),
        ({"newcomers": 2}, True),
        ({"scale": "pixel"}, False),  # by the training rows, which are others
        ({"rows": 900}, False),  # chosen by the seed
        ({"rotate": 2}, False),
    ],
)
def test_seeds_share_what_is_the_same_and_nothing_else(settings, shared, monkeypatch):
    reads = []
    original = build.read_data
    monkeypatch.setattr(build, "read_data", lambda *a: reads.append(a) or original(*a))
    store, one = AssemblyCache(None, None), experiment(**{"rows": 1797} | settings)
    each = [replace(one, seed=seed) for seed in (0, 1, 2)]
    found = [store.federation(one) for one in each]
    assert len(reads) == 1
    assert all((one.x is found[0].x) == shared for one in found[1:])
    for one, together in zip(each, found, strict=True):
        alone = load_federation(one)
        assert checksum_of(together) == checksum_of(alone)
        assert torch.equal(together.x, alone.x)
        assert all(map(np.array_equal, together.train, alone.train))


@pytest.mark.parametrize("split", ["user", "classes"])  # made when asked for, and at once
def test_seeds_share_no_rows_that_are_drawn(split):
    one, store = (
        change_options(Experiment(), {"dataset": "synthetic", "partition": split}),
        AssemblyCache(None, None),
    )
    first, second = (store.federation(replace(one, seed=seed)) for seed in (0, 1))
    assert (
        checksum_of(second)
        == checksum_of(load_federation(replace(one, seed=1)))
        != checksum_of(first)
    )


def test_rows_that_do_not_fit_are_read_again(monkeypatch):
    reads = []
    original = build.read_data
    monkeypatch.setattr(build, "read_data", lambda *a: reads.append(a) or original(*a))
    monkeypatch.setattr(cache, "MAX_BYTES", 2 * 1797 * 64 - 1)
    store = AssemblyCache(None, None)
    found = [store.federation(replace(experiment(rows=1797), seed=seed)) for seed in (0, 1)]
    assert len(reads) == 2
    assert found[0].x is not found[1].x
