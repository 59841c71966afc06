"""The Ray engine: real actors, and the local engine's results to 1e-9 whatever becomes of them."""

import copy
import os
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.method import stages_of
from coterie.data.federation import with_select
from coterie.engines.base import EngineSetup
from coterie.engines.ray import actors
from coterie.engines.ray.actors import ActorPool, pack, shard_of, unpack
from coterie.engines.ray.engine import RayEngine, assign_seats
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.config import Experiment, change_options
from coterie.methods.registry import METHODS
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.execute import execute, restore_checkpoint, write_checkpoint
from coterie.running.loop import Loop
from helpers.federations import SEQUENTIAL, assert_same, float64, personal, play, tiny, tiny_model

pytestmark = [
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is an extra"
    ),  # not imported: it reads its switches then
    pytest.mark.xdist_group("ray"),  # one process, one cluster
]


@pytest.fixture(scope="module")
def three():
    """Three actors that all tests of this file use in turn."""
    pool = ActorPool(actors=3)
    yield pool
    pool.close()


@pytest.fixture
def pool(three):
    return some(three, 2)


def opened(experiment):
    """A run at its beginning, put together from its words."""
    return open_loop(assemble(experiment, load_federation(experiment)))


def some(pool, count):
    """The first actors of a pool."""
    few = copy.copy(pool)
    few.actors = dict(list(pool.actors.items())[:count])
    return few


def over(pool, loop):
    """A loop that stands at its beginning, with its clients given to actors."""
    local = loop.engine
    setup = EngineSetup(
        federation=loop.federation,
        models=local.models,
        programs=local.programs,
        architecture=local.architecture,
        seed=local.seed,
        settings=list(local.settings),
    )
    engine = RayEngine(setup, pool=pool)
    return Loop(engine, loop.federation, loop.schedule, loop.seed)


def both(pool, build, **more):
    """The same run by the local engine and by actors."""
    here, there = play(build, **more), over(pool, play(build, until=0, **more))
    there.go()
    return here, there


def numbers(table):
    """Every number of a table but the seconds, by what it is."""
    rows = table.to_pylist()
    return {
        tuple(v for k, v in row.items() if k != "value"): row["value"]
        for row in rows
        if row["metric"] != "seconds"
    }


def assert_equal_runs(here, there, tolerance=1e-9):
    """Models, losses, accuracies, scores, notes, steps and traffic agree."""
    assert_same(personal(here), personal(there), tolerance)
    wanted, found = numbers(here.table.whole()), numbers(there.table.whole())
    assert list(wanted) == list(found)
    np.testing.assert_allclose(
        list(found.values()),
        list(wanted.values()),
        rtol=max(tolerance, 1e-6),
        atol=max(tolerance, 1e-6),
    )


# Parity


@pytest.mark.parametrize("name", sorted(METHODS))
def test_actors_and_the_local_engine_give_the_same_run(name, pool):
    with float64():
        assert_equal_runs(*both(pool, name, eval_every=1))


@pytest.mark.parametrize("name", ["ditto", "persfl", "selffl", "fedfomo", "scaffold"])
def test_sampling_and_dropouts_give_the_same_run(name, pool):
    with float64():
        assert_equal_runs(
            *both(pool, name, rounds=3, participation=0.6, dropout_clients=0.3, eval_every=1)
        )


def test_everybody_training_and_some_averaged_gives_the_same_run(pool):
    with float64():
        assert_equal_runs(*both(pool, "pfedme", rounds=3, participation=0.6, trains="all"))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["selffl", "ktpfl"])
def test_the_number_of_actors_changes_nothing(name, count, three):
    with float64():
        assert_equal_runs(*both(some(three, count), name))


@pytest.mark.parametrize("name", ["fedmd", "ktpfl", "feddf"])
def test_different_networks_give_the_same_run(name, pool):
    with float64():
        assert_equal_runs(*both(pool, name, models=[tiny_model(5), tiny_model(7)], eval_every=1))


def test_one_client_after_another_gives_the_same_run(pool):
    with float64():
        assert_equal_runs(*both(pool, "apfl", settings=SEQUENTIAL))


def test_float32_agrees_too(pool):
    assert_equal_runs(*both(pool, "fedavg", rounds=1), tolerance=2e-4)


def test_predictions_come_in_the_order_of_clients_and_are_the_same(pool):
    with float64():
        here, there = both(pool, "ditto")
        found = [
            list(loop.engine.predictions(loop.everyone, loop.payload(), loop.when(), "test"))
            for loop in (here, there)
        ]
        assert [i for i, _, _ in found[1]] == here.everyone
        for (_, y, p), (_, labels, chances) in zip(*found, strict=True):
            assert (y == labels).all()
            np.testing.assert_allclose(p, chances, atol=1e-9)


def test_a_newcomer_gets_the_model_it_would_get_on_one_machine(pool):
    federation = tiny(6)
    short = federation._replace(
        **{
            part: getattr(federation, part)[:5]
            for part in ("train", "validation", "select", "test", "names")
        },
        groups=federation.groups[:5],
    )
    with float64():
        here, there = both(pool, "ditto", federation=short)
        for loop in (here, there):
            loop.admit(federation)
        assert_same(personal(here), personal(there))


def test_settings_left_open_are_chosen_once_for_all_actors(pool):
    loop = over(
        pool,
        play("fedmd", until=0, models=[tiny_model(5), tiny_model(7)], settings=ExecutionSettings()),
    )
    loop.engine.begin()
    assert sorted(loop.engine.seat) == loop.everyone
    loop.go(until=1)
    chosen = list(loop.engine.settings)
    assert not any(s.open for s in chosen)
    loop.go(until=2)
    assert loop.engine.settings == chosen


def test_what_a_client_refuses_is_one_line_here(three):
    def build(model, train):
        def refuse(*_):
            raise BadInput("x = 3: too much")

        method = METHODS["fedavg"](model, train)
        return method._replace(round=(method.round[0]._replace(finish=refuse),))

    with pytest.raises(BadInput, match=r"^x = 3: too much$"):
        over(some(three, 3), play(build, until=0)).go()


def test_a_client_that_diverges_is_left_out_by_actors_as_here(three):
    federation = tiny(4)
    x = federation.x.clone()
    x[torch.as_tensor(federation.train[3])] *= 1e37
    here, there = both(some(three, 2), "ditto", federation=federation._replace(x=x))
    assert_equal_runs(here, there)
    rows = there.table.whole().to_pylist()
    left = [r for r in rows if r["metric"] == "left_out"]
    assert [(r["client"], r["value"]) for r in left] == [(-1, 1.0), (3, 1.0)] * 2


# Checkpoints


@pytest.mark.parametrize("name", ["ditto", "persfl"])
@pytest.mark.parametrize("first", ["here", "there"])
def test_a_run_goes_on_with_another_engine_or_other_actors(name, first, three, tmp_path):
    with float64():
        whole = play(name, rounds=3, eval_every=1)
        begun = play(name, rounds=3, eval_every=1, until=2 if first == "here" else 0)
        if first == "there":
            begun = over(some(three, 3), begun)
            begun.go(until=2)
        write_checkpoint(begun, tmp_path)
        again = play(name, rounds=3, eval_every=1, until=0)
        if first == "here":
            again = over(some(three, 2), again)
        restore_checkpoint(again, list_checkpoints(tmp_path)[-1])
        again.go()
        assert_equal_runs(whole, again)


# Losses


def kill(pool, seat):
    os.kill(pool.processes()[seat], signal.SIGKILL)


def test_a_killed_actor_is_replaced_and_changes_nothing(three):
    with float64():
        pool = some(three, 2)
        whole = play("ditto", rounds=3, eval_every=1)
        loop = over(pool, play("ditto", rounds=3, eval_every=1, until=0))
        loop.go(until=1)
        before = pool.processes()
        kill(pool, 0)
        loop.go()
        assert_equal_runs(whole, loop)
        after = pool.processes()
        assert after[0] != before[0]
        assert after[1] == before[1]
        three.actors |= pool.actors


def dying(marker):
    """Ditto, whose first client to finish while the marker stands takes its process with it."""

    def build(model, train):
        (stage,) = stages_of(METHODS["ditto"](model, train))
        (exchange,) = stage.method.round

        def finish(*arguments):
            if marker.exists():
                marker.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange.finish(*arguments)

        return stage.method._replace(round=(exchange._replace(finish=finish),))

    return build


def test_an_exchange_cut_short_is_repeated_by_others_from_the_states_before_it(
    three, tmp_path, monkeypatch
):
    """With no core for a new actor, those left take the clients of the lost one."""
    marker = tmp_path / "marker"
    with float64():
        whole = play("ditto", rounds=3, settings=SEQUENTIAL)
        loop = over(three, play(dying(marker), rounds=3, until=0, settings=SEQUENTIAL))
        loop.go(until=1)
        marker.touch()
        monkeypatch.setattr(actors, "PATIENCE", 0.0)
        loop.go()
        assert not marker.exists()
        assert len(three.actors) == 2
        assert set(loop.engine.seat.values()) == set(three.actors)
        assert_equal_runs(whole, loop)


def test_a_loss_of_all_actors_is_one_line_that_says_how_to_go_on(three, monkeypatch):
    pool = some(three, 1)
    loop = over(pool, play("fedavg", until=0))
    loop.go(until=1)
    kill(pool, next(iter(pool.actors)))
    monkeypatch.setattr(actors, "PATIENCE", 0.0)
    with pytest.raises(
        BadInput,
        match=r"^every Ray actor was lost .* `coterie resume` goes on from the checkpoint$",
    ):
        loop.go()


# Shards and parcels


def test_shards_are_balanced_within_each_architecture():
    rng = np.random.default_rng(0)
    work, architecture = rng.integers(1, 100, 60), np.arange(60) % 3
    seat = assign_seats(range(60), work, architecture, [0, 1, 4])
    assert sorted(seat) == list(range(60))
    for a in range(3):
        loads = [
            sum(work[i] for i in seat if seat[i] == s and architecture[i] == a) for s in (0, 1, 4)
        ]
        assert max(loads) - min(loads) <= work[architecture == a].max()
    assert set(assign_seats(range(3), np.ones(3), np.arange(3), [0, 1, 2]).values()) == {0, 1, 2}
    more = assign_seats([0], np.ones(60), architecture, [0, 1], dict.fromkeys(range(1, 60), 0))
    assert more == {0: 1}


def test_a_shard_has_the_rows_of_its_clients_and_no_others():
    federation = with_select(tiny())
    shard = shard_of(federation, [1, 4])
    assert shard.clients == federation.clients
    assert len(shard.x) == sum(
        len(getattr(federation, part)[i])
        for part in ("train", "validation", "select", "test")
        for i in (1, 4)
    )
    for part in ("train", "validation", "select", "test"):
        for i in range(federation.clients):
            rows = getattr(federation, part)[i] if i in (1, 4) else []
            assert np.array_equal(shard.x[getattr(shard, part)[i]], federation.x[rows])
            assert np.array_equal(shard.y[getattr(shard, part)[i]], federation.y[rows])


def test_what_all_clients_get_travels_once_and_stays_one_tensor():
    w, own = torch.randn(3, 2), [torch.randn(4) for _ in range(4)]
    payloads = {i: {"w": w, "turned": w.T, "own": own[i]} for i in range(4)}
    common, parcels = pack(payloads, [[0, 2], [1, 3]])
    assert len(common) == 2
    assert [len(p.own) for p in parcels] == [2, 2]
    for parcel, group in zip(parcels, ([0, 2], [1, 3]), strict=True):
        send = unpack(common, parcel)
        for i in group:
            assert all(torch.equal(t, payloads[i][k]) for k, t in send(i).items())
        assert send(group[0])["w"] is send(group[1])["w"]


# Words and the command line


def test_ray_is_on_loopback_alone(three):
    assert [node["NodeManagerAddress"] for node in three.ray.nodes()] == ["127.0.0.1"]


def test_a_ray_that_was_imported_before_is_on_loopback_too():
    program = """
import ray
from coterie.engines.ray.actors import ActorPool
print([node["NodeManagerAddress"] for node in ActorPool(actors=1).ray.nodes()])
ray.shutdown()
"""
    environment = {k: v for k, v in os.environ.items() if k != actors.CLUSTERS}
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.stdout.splitlines()[-1:] == ["['127.0.0.1']"], found.stderr


@pytest.mark.parametrize(
    ("address", "line"),
    [
        (
            "127.0.0.1:1",
            "ray_address = '127.0.0.1:1': no Ray answers there (Connection refused); `ray start "
            "--head` starts one",
        ),
        ("head", "ray_address = 'head': give HOST:PORT of the head node, as in 10.0.0.5:6379"),
        (
            "ray://head:1",
            "ray_address = 'ray://head:1': give HOST:PORT of the head node, as in 10.0.0.5:6379",
        ),
    ],
)
def test_an_address_without_a_cluster_is_refused_in_one_line_and_no_folder_is_made(
    address, line, tmp_path
):
    for use in (
        lambda: ActorPool(address),
        lambda: execute(
            change_options(Experiment(), {"engine": "ray", "ray_address": address}), tmp_path / "r"
        ),
    ):
        with pytest.raises(BadInput) as caught:
            use()
        assert str(caught.value) == line
    assert not (tmp_path / "r").exists()


def test_more_actors_than_cores_are_refused(three):
    with pytest.raises(
        BadInput,
        match=r"^actors = 9 of 1 threads each, but the Ray cluster has 3 cores: give fewer$",
    ):
        ActorPool(actors=9)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"^engine = 'ray' needs Ray: pip install 'coterie\[ray\]'$"):
        opened(change_options(Experiment(), {"engine": "ray"}))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"actors": 2},
            "unknown option 'actors' for engine local: it belongs to engine ray, add --engine ray",
        ),
        (
            {"ray_address": "head:6379"},
            "unknown option 'ray_address' for engine local: it belongs to engine ray, add "
            "--engine ray",
        ),
        (
            {"engine": "ray", "actors": -1},
            "actors = -1: give a whole number from 0 to 1,024, such as 0",
        ),
    ],
)
def test_words_that_mean_nothing_are_refused(settings, line):
    with pytest.raises(BadInput) as caught:
        opened(change_options(Experiment(), settings))
    assert str(caught.value) == line


SCRIPT = """
import sys
from coterie.cli.main import cli
cli(sys.argv[1:], standalone_mode=False)
import ray
assert not ray.is_initialized(), "Ray is still there"
assert ray.util.get_node_ip_address() == "127.0.0.1", "Ray was open to the network"
"""


def test_the_command_line_runs_on_ray_and_leaves_nothing_of_it(tmp_path):
    settings = {
        "method": "fedavg",
        "rounds": 2,
        "num_clients": 4,
        "dataset.seed": 0,
        "path": "vectorized",
        "width": 4,
        "compile": "no",
    }
    line = ["run", "--engine", "ray", "--actors", "2", "--out", str(tmp_path / "there"), "--quiet"]
    line += [text for option, value in settings.items() for text in (f"--{option}", str(value))]
    home = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *line], capture_output=True, text=True, env=home, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "token" not in done.stderr.lower()
    assert not (tmp_path / ".ray").exists()
    written = tomllib.loads((tmp_path / "there" / "config.toml").read_text())["engine"]
    assert (written["name"], written["actors"], written["threads"]) == ("ray", 2, 1)
    execute(change_options(Experiment(), settings), tmp_path / "here")
    here, there = (
        numbers(pq.read_table(tmp_path / run / "metrics.parquet")) for run in ("here", "there")
    )
    assert list(here) == list(there)
    np.testing.assert_allclose(list(there.values()), list(here.values()), rtol=1e-4, atol=1e-4)
    models = [
        sorted(path.name for path in (tmp_path / run / "models").glob("*.safetensors"))
        for run in ("here", "there")
    ]
    assert models[0] == models[1] == ["client-00000.safetensors"]
