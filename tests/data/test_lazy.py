import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Train, stages_of
from coterie.core.model import Model
from coterie.data import lazy_rows
from coterie.data.federation import PARTS, checksum_of, count_labels, part_of
from coterie.data.pipeline import build_federation
from coterie.data.read.sources import synthetic
from coterie.engines.base import EngineSetup
from coterie.engines.local.engine import LocalEngine
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.networks import registry
from coterie.running.divergence import measure_majority
from coterie.running.loop import Loop

OPTIONS = {"draws": "streams", "sizes": "fedprox"}


def both(monkeypatch, clients=12, options=OPTIONS, **choices):
    """The same federation, stored and made when it is asked for."""
    settings = {
        "num_clients": clients,
        "data_options": {"num_clients": clients, **options},
        **choices,
    }
    stored = build_federation("synthetic", **settings)
    monkeypatch.setattr(synthetic, "MAX_STORED", 0)
    made = build_federation("synthetic", **settings)
    assert isinstance(made.x, lazy_rows.LazyRows)
    assert isinstance(stored.x, torch.Tensor)
    return stored, made


def run(data, path="vectorized", method="ditto"):
    model = Model(lambda: registry.build_network("mlr", (60,), 10), input_shape=(60,))
    program = stages_of(METHODS[method](model, Train(batch_size=8, lr=0.01, local_epochs=1)))
    setup = EngineSetup(
        federation=data,
        models=[model],
        programs=[program],
        architecture=np.zeros(data.clients, dtype=int),
        settings=[ExecutionSettings(path, 4, "no")],
    )
    loop = Loop(LocalEngine(setup), data, Schedule(rounds=3, participation=5, eval_every=1), 0)
    loop.go()
    return loop


@pytest.mark.parametrize("options", [OPTIONS, {**OPTIONS, "rows_each": 7}])
def test_rows_made_when_asked_for_are_the_stored_ones(monkeypatch, options):
    stored, made = both(monkeypatch, options=options, newcomers=3)
    for part in PARTS:
        for mine, theirs in zip(part_of(made, part), part_of(stored, part), strict=True):
            assert torch.equal(made.x[mine], stored.x[theirs])
            assert torch.equal(made.y[torch.as_tensor(mine)], stored.y[theirs])
    assert made.names == stored.names
    assert made.newcomers.names == stored.newcomers.names
    assert np.array_equal(made.y.numpy(), stored.y.numpy())
    assert torch.equal(made.x[:9], stored.x[:9])
    assert torch.equal(made.x[3], stored.x[3])
    assert count_labels(made).equals(count_labels(stored))
    assert measure_majority(made) == measure_majority(stored)
    assert made.input_shape == stored.input_shape


@pytest.mark.parametrize("kept", [0, 2**30])
@pytest.mark.parametrize(("path", "method"), [("vectorized", "ditto"), ("sequential", "finetune")])
def test_a_run_on_rows_made_when_asked_for_is_that_on_stored_ones(monkeypatch, path, method, kept):
    monkeypatch.setattr(lazy_rows, "MAX_KEPT", kept)
    monkeypatch.setattr("coterie.engines.local.batches.ROWS_AT_ONCE", 1000)  # several chunks
    found, wanted = (run(data, path, method) for data in reversed(both(monkeypatch)))
    assert kept or len(list(found.engine.points(*found.ask()))) > 1
    one, other = (loop.table.whole().to_pandas() for loop in (found, wanted))
    drop = one["metric"].isin(["seconds"])
    np.testing.assert_allclose(one["value"][~drop], other["value"][~drop], rtol=1e-6)
    leaves = (pytree.tree_leaves(loop.engine.dump()) for loop in (found, wanted))
    for a, b in zip(*leaves, strict=True):
        assert np.array_equal(a, b)


def test_a_client_is_made_only_where_it_takes_part(monkeypatch):
    monkeypatch.setattr(lazy_rows, "MAX_KEPT", 0)
    _, data = both(monkeypatch, clients=200)
    asked = []
    plain = data.x.maker._make
    data.x.maker._make = lambda some: asked.extend(some) or plain(some)
    loop = run(data._replace(validation=data.validation))
    asked.clear()
    loop.schedule = loop.schedule._replace(rounds=9)
    played = loop._round(loop.program[0], 5, loop.position.server)
    assert set(asked) == set(played.clients)


def test_the_checksum_of_made_rows_tells_what_they_are_made_of(monkeypatch):
    _, made = both(monkeypatch)
    for other in ({"rows_each": 9}, {"seed": 5}, {"alpha": 0.1}):
        options = {"num_clients": 12, **OPTIONS, **other}
        assert checksum_of(
            build_federation("synthetic", num_clients=12, data_options=options)
        ) != checksum_of(made)
    assert checksum_of(made._replace(train=made.test)) != checksum_of(made)


def test_what_needs_every_row_stores_every_row(monkeypatch):
    monkeypatch.setattr(synthetic, "MAX_STORED", 0)
    for choice in ({"scale": "standard"}, {"rows": 500}, {"cut": "shuffle"}, {"partition": "iid"}):
        found = build_federation(
            "synthetic", num_clients=5, data_options={"num_clients": 5, **OPTIONS}, **choice
        )
        assert isinstance(found.x, torch.Tensor)


def test_too_many_rows_to_store_name_the_way_out(monkeypatch):
    monkeypatch.setattr("coterie.core.memory.read_memory_limit", lambda: 1000)
    with pytest.raises(BadInput, match="--draws streams, which makes rows when they are needed"):
        build_federation("synthetic", num_clients=5, data_options={"num_clients": 5})


@pytest.mark.parametrize(("clients", "draws"), [(9, "legacy"), (12, "streams")])
def test_many_clients_have_streams_of_their_own(monkeypatch, tmp_path, clients, draws):
    monkeypatch.setattr(synthetic, "MOST_LEGACY", 10)
    settings = {"num_clients": clients, "sizes": "fedprox"}
    found, wanted = (
        synthetic.synthetic(tmp_path, **settings, draws=each) for each in ("auto", draws)
    )
    assert np.array_equal(found.x, wanted.x)
    monkeypatch.setattr(synthetic, "MAX_STORED", 0)
    assert (synthetic.build_generator(**settings) is None) == (draws == "legacy")


@pytest.mark.parametrize("made_at_once", [1, 2**23])
def test_rows_that_are_kept_are_made_once(monkeypatch, made_at_once):
    monkeypatch.setattr(lazy_rows, "MADE", made_at_once)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    _, made = both(monkeypatch)
    maker, drawn = made.x.maker, []
    usual = maker._make
    maker._make = lambda clients: drawn.extend(clients) or usual(clients)
    x, y = maker.whole()
    for clients in ([3, 1], [1, 4], [4], range(12), range(12)):
        maker.make(np.asarray(clients))
    assert sorted(drawn) == list(range(12))
    maker._make = usual
    for wanted, kept in zip(maker.of(range(12)), (x, y), strict=True):
        assert torch.equal(wanted, kept)
    assert np.array_equal(made.y.numpy(), y.numpy())
