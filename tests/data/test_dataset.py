"""Laws of the entries: what is special about a data set or network stands there, and nowhere
else.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.data.dataset import Channels, Dataset, Source
from coterie.data.pipeline import build_federation
from coterie.data.read.catalog import DATASETS
from coterie.experiment.build import federation_of, models_of
from coterie.experiment.config import Experiment, change_options, resolve_names
from coterie.networks.dense import mlr
from coterie.networks.registry import NETS, Net


def stripes(folder, seed=0):
    """Images drawn from the seed, of six natural clients, with pixels from 0 to 8."""
    rng, rows = np.random.default_rng(seed), 120
    x = rng.integers(0, 9, (rows, 1, 4, 4)).astype(np.uint8)
    y = np.arange(rows) // 5 % 2
    return Dataset(
        name="stripes", x=x, y=y, classes=2, train=np.ones(rows, bool), users=np.arange(rows) // 20
    )


SPECIAL = Source(
    stripes,
    natural=True,
    network="one",
    cut="order",
    scale="unit",
    top=8.0,
    channels=Channels((0.5,), (0.25,)),
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(DATASETS, "stripes", SPECIAL)
    monkeypatch.setitem(
        NETS, "one", Net(lambda input_shape, classes: mlr(input_shape, 1), one_logit=True)
    )


@pytest.mark.usefixtures("registered")
def test_an_entry_is_all_that_a_new_data_set_needs():
    experiment = change_options(Experiment(), {"dataset": "stripes", "seed": 3})
    assert resolve_names(experiment) == {"dataset": "stripes", "partition": "user", "model": "one"}
    got = federation_of(experiment)
    drawn = stripes(None, seed=3)
    assert got.clients == 6
    assert torch.equal(
        got.x[got.train[0]], torch.tensor(drawn.x[:12] / 8, dtype=torch.float32)
    )  # in order, by its top
    [model] = models_of(experiment, got)
    assert (model.name, model.task) == ("one", "binary")


@pytest.mark.usefixtures("registered")
def test_published_statistics_and_split_options_come_from_the_entry(monkeypatch):
    got = build_federation("stripes", scale="channel")
    raw = stripes(None).x / 8
    assert torch.allclose(
        got.x[got.train[0]], torch.tensor((raw[:12] - 0.5) / 0.25, dtype=torch.float32)
    )
    monkeypatch.setitem(
        DATASETS, "stripes", SPECIAL._replace(split_options={"perfedavg": {"a": 4}})
    )
    for options in ({}, {"a": None}):
        assert [
            len(rows)
            for rows in build_federation(
                "stripes", "perfedavg", 4, test=0.5, validation=0, options=options
            ).train
        ] == [
            2,
            2,
            5,
            5,
        ]
    assert (
        len(
            build_federation(
                "stripes", "perfedavg", 4, test=0.5, validation=0, options={"a": 8}
            ).train[0]
        )
        == 4
    )


@pytest.mark.usefixtures("registered")
def test_only_a_network_that_wants_the_word_table_gets_it(monkeypatch):
    seen = []

    def reader(input_shape, classes, table=None):
        seen.append(table)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, classes))

    table = torch.ones(9, 5)
    data = build_federation("stripes")._replace(table=table)
    for wants in (True, False):
        monkeypatch.setitem(NETS, "reader", Net(reader, wants_table=wants))
        seen.clear()
        [model] = models_of(
            change_options(Experiment(), {"dataset": "stripes", "model": "reader"}), data
        )
        assert model.task == "classes"
        assert all((t is table) == wants for t in seen)
        assert seen


def test_no_module_but_the_registry_and_its_own_spells_a_data_sets_name():
    """Networks neither, where experiments are made; `digits`, which an experiment begins with, is
    the one exception.
    """
    root = Path(coterie.__file__).parent
    homes = {
        root / "data" / "read" / "catalog.py",
        *(root / "data" / "read" / "sources").glob("*.py"),
    }
    for path in set(root.rglob("*.py")) - homes:
        names = set(DATASETS) | (set(NETS) if path.parent.name == "experiment" else set())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in names - {"digits", "mean"}, (  # words too
                    f"{path.relative_to(root)}:{node.lineno} spells '{node.value}'"
                )
