"""Laws of clients that come after training."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.errors import BadInput
from coterie.core.point import flatten, pick
from coterie.data.federation import checksum_of
from coterie.data.newcomers import keep_out, select_newcomers, with_few_rows, with_newcomers
from coterie.data.read.user_data import from_arrays
from coterie.engines.local.native.compiler import find_compiler
from coterie.experiment.config import Experiment, change_options
from coterie.methods.registry import METHODS
from coterie.results.models import load_model
from coterie.results.run import load_run
from coterie.running.execute import execute, resume
from coterie.running.newcomer_training import WAYS, finished_run_of, train_newcomers
from helpers.federations import assert_same, personal, play, tiny
from helpers.runs import FAST, Stopped, stop_at

LATE = np.array([2, 5])
every_method = pytest.mark.parametrize("name", sorted(METHODS))


def finished(name, federation=None, **more):
    """(the loop at its end, the run as newcomers see it)."""
    loop = play(name, keep_out(federation or tiny(7), LATE), **more)
    loop.schedule = loop.schedule._replace(newcomer_rounds=2)
    return loop, finished_run_of(loop, with_newcomers(loop.federation))


def models_of(served):
    """{newcomer: its model as one vector}"""
    return {
        i: flatten(pick(views["personal"], slice(k, k + 1)))[0]
        for _, chunk, views in served.points()
        for k, i in enumerate(chunk)
    }


@every_method
def test_newcomers_are_served_and_their_rows_reach_nobody_else(name):
    """Garbage in a newcomer's rows leaves every trained model, and every other newcomer's, bit by
    bit as it was; each newcomer has a finite model in every way.
    """
    federation = tiny(7)
    x, y = federation.x.clone(), federation.y.clone()
    for part in (federation.train, federation.validation, federation.test):
        x[part[LATE[1]]], y[part[LATE[1]]] = 10.0, 0
    loop, run = finished(name, federation)
    dirty_loop, dirty = finished(name, federation._replace(x=x, y=y))
    before = personal(loop)
    assert_same(before, personal(dirty_loop), 0)
    for way in WAYS:
        served = train_newcomers(run, way)
        measured = served.measure()
        assert np.isfinite(measured["personal", "test", "loss"]).all()
        assert len(measured["personal", "test", "accuracy"]) == len(LATE)
        if way == "rule":
            mine, theirs = models_of(served)[5], models_of(train_newcomers(dirty, way))[5]
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert_same(before, personal(loop), 0)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_a_method_without_a_rule_fine_tunes_its_global_model(name):
    _, run = finished(name)
    assert_same(
        models_of(train_newcomers(run, "rule")), models_of(train_newcomers(run, "finetune")), 0
    )
    assert run.methods[0].newcomer is None


def test_local_newcomers_train_as_long_as_the_clients_did():
    loop, run = finished("local", rounds=3)
    start = run.methods[0].join(loop.position.server.seed, None)
    rule = models_of(train_newcomers(run, "rule"))
    assert all(not torch.equal(w, flatten(pick(start, None))[0]) for w in rule.values())
    loss = train_newcomers(run, "rule").measure()["personal", "test", "loss"]
    longer = train_newcomers(run._replace(rounds=9), "rule").measure()["personal", "test", "loss"]
    assert not np.allclose(loss, longer)


def test_a_ucfl_newcomer_with_the_rows_of_a_client_takes_most_from_it():
    federation = tiny(7)
    train = [federation.train[0] if i == 2 else rows for i, rows in enumerate(federation.train)]
    _, run = finished("ucfl", federation._replace(train=train))
    rule, servers = run.methods[0].newcomer, []
    look = rule.round[0]

    def watched(server, replies, rng):
        servers.append(look.receive(server, replies, rng))
        return servers[-1]

    own = rule._replace(round=(look._replace(receive=watched),))
    train_newcomers(run._replace(methods=[run.methods[0]._replace(newcomer=own)]), "rule")
    after, trained_clients = servers[0], len(run.server.compared.g)
    old, new = run.server.weights.weights, after.weights.weights
    rows = new[run.came, :trained_clients]
    torch.testing.assert_close(rows.sum(1), torch.ones(len(LATE)))
    assert int((rows[0] / after.sizes[:trained_clients]).argmax()) == 0
    assert torch.equal(new[:trained_clients], old[:trained_clients])


def test_a_pfedhn_newcomer_fits_its_embedding_and_nothing_else():
    loop, run = finished("pfedhn", rounds=12, train=play("pfedhn", until=0).train)
    before = loop.position.server.phi
    served = train_newcomers(run, "rule")
    loss = served.engine.evaluate(run.came, served.send, served.when, ("train",))
    still = train_newcomers(run._replace(rounds=0), "rule")
    middle = still.engine.evaluate(run.came, still.send, still.when, ("train",))
    key = ("personal", "train", "loss")
    assert loss[key].mean() < middle[key].mean()
    assert loop.position.server.phi is before


@pytest.mark.parametrize(("wanted", "count"), [(0.2, 4), (3, 3), (0.01, 1)])
def test_newcomers_are_a_share_or_a_count_and_follow_the_seed(wanted, count):
    found = select_newcomers(wanted, 20, seed=1)
    assert len(found) == count
    assert (found == select_newcomers(wanted, 20, seed=1)).all()
    assert any((found != select_newcomers(wanted, 20, seed=s)).any() for s in range(2, 6))


@pytest.mark.parametrize("wanted", [20, 2.5, 0.999])
def test_impossible_newcomers_are_refused(wanted):
    with pytest.raises(BadInput, match="newcomers = "):
        select_newcomers(wanted, 20, seed=0)


def test_keeping_out_and_letting_in_loses_no_row():
    federation = tiny(7)
    kept = keep_out(federation, LATE)
    assert kept.clients == 5
    back = with_newcomers(kept)
    assert back.names == ["0", "1", "3", "4", "6", "2", "5"]
    assert (back.train[5] == federation.train[2]).all()
    late = kept.newcomers._replace(names=["2", "other"])
    assert checksum_of(kept) != checksum_of(kept._replace(newcomers=late))


def test_fewer_rows_are_always_among_more():
    late = keep_out(tiny(7), LATE).newcomers
    few, more = (with_few_rows(late, n, seed=0) for n in (2, 5))
    for k in range(len(LATE)):
        assert (len(few.train[k]), len(more.train[k])) == (2, 5)
        assert set(few.train[k]) < set(more.train[k]) <= set(late.train[k])
        assert (few.test[k] == late.test[k]).all()
        assert set(few.validation[k]) <= set(late.validation[k])


WORDS = FAST | {"method": "ditto", "rounds": 2, "hidden": 4, "newcomers": 2, "newcomer_rounds": 2}


def arrays(garbage=False):
    rng = np.random.default_rng(0)
    x, owners = rng.normal(size=(240, 5)), np.repeat(np.arange(8), 30)
    y = (x[:, 0] + 0.2 * owners * x[:, 1] > 0).astype(np.int64)
    late = select_newcomers(2, 8, seed=0)
    if garbage:
        x = np.where(np.isin(owners, late)[:, None], 1e3 + x, x)
    return from_arrays(x, y, owners.astype(str), name="made")


def run_of(folder, watch=lambda report: None, garbage=False, **settings):
    given = arrays(garbage)
    experiment = change_options(
        Experiment(), WORDS | {"dataset": "python:made", "partition": "user"} | settings
    )
    return execute(experiment, folder, watch, data=given)


@pytest.mark.parametrize("scale", ["standard", "client", "robust"])
def test_nothing_is_fitted_on_newcomers(tmp_path, scale):
    """Scales, models and all results of the trained are the same whatever newcomers hold."""
    clean = run_of(tmp_path / "a", scale=scale)
    dirty = run_of(tmp_path / "b", garbage=True, scale=scale)
    assert clean.about["clients"] == dirty.about["clients"]
    for i in range(6):
        pair = [load_model(run.folder, i).state_dict() for run in (clean, dirty)]
        assert all(torch.equal(a, b) for a, b in zip(*(p.values() for p in pair), strict=True))
    assert (clean.accuracy() == dirty.accuracy()).all()


def test_a_run_reports_its_newcomers_as_rows_of_their_own(tmp_path):
    run = run_of(tmp_path / "run", few_shot=(2, 5))
    assert len(run.accuracy()) == 6
    assert run.views == ["personal", "global"]
    again = load_run(tmp_path / "run")
    rows = again.newcomers()
    assert [row.way for row in rows] == list(WAYS)
    assert all(row.n == 2 and row.low <= row.mean <= row.high for row in rows)
    own, tuned, _ = rows
    found = again.came.values("rule") - again.came.values("finetune")
    assert (own.gain, tuned.gain) == (0.0, pytest.approx(found.mean()))
    assert again.came.sizes == [2, 5]
    assert again.newcomers(5)[0].n == 2
    assert again.came.rule == "trains its v beside the received w"


def test_a_resumed_run_serves_its_newcomers_alike(tmp_path):
    whole = run_of(tmp_path / "whole", method="pfedhn", rounds=3, checkpoint=1)
    with pytest.raises(Stopped):
        run_of(tmp_path / "stopped", stop_at(2), method="pfedhn", rounds=3, checkpoint=1)
    again = resume(tmp_path / "stopped", data=arrays())
    for way in WAYS:
        assert (whole.came.values(way) == again.came.values(way)).all()


def test_words_on_newcomers_without_newcomers_are_refused(tmp_path):
    for settings in ({"newcomer_rounds": 3}, {"few_shot": (5,)}):
        with pytest.raises(BadInput, match="there are no newcomers: give --newcomers"):
            run_of(tmp_path / "run", **{"newcomers": 0, "newcomer_rounds": 10} | settings)
    with pytest.raises(BadInput, match="the smallest newcomer has 18 training rows"):
        run_of(tmp_path / "run", few_shot=(50,))
    with pytest.raises(BadInput, match="measured on test rows"):
        run_of(tmp_path / "run", parts=("train", "validation"))
    with pytest.raises(BadInput, match="in no budget"):
        run_of(tmp_path / "run", dp="client", dp_noise=1.0, dp_clip=1.0, method="fedavg")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not find_compiler(), reason="no C compiler")
def test_what_a_newcomer_does_may_have_no_machine_code(tmp_path):
    """Of a run whose own steps are machine code by auto: fedem's newcomers learn shares."""
    coterie.run(
        "fedem",
        num_clients=6,
        rounds=5,
        local_steps=250,
        newcomers=1,
        compile="auto",
        out=tmp_path / "run",
    )
    assert load_run(tmp_path / "run").newcomers()
    assert 'chosen = "vectorized:5:yes"' in (tmp_path / "run" / "config.toml").read_text()
