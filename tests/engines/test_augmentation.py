"""Augmented training is the same on every path and engine, and touches nothing but training."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.augmentation import move_images
from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.method import BatchPlan, Method, Pass
from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.data.federation import Federation
from coterie.data.prepare.preparation import Preparation
from coterie.engines.base import Moment
from coterie.engines.local import batches
from coterie.engines.local.native import compiler
from coterie.engines.ray.actors import shard_of
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.schedule import Schedule
from coterie.methods.fedavg import fedavg
from coterie.methods.registry import METHODS
from coterie.running.execute import restore_checkpoint, write_checkpoint
from helpers.federations import SEQUENTIAL, TRAIN, assert_same, float64, personal, play
from helpers.town import finish, town

MOVED = TRAIN._replace(augment="crop:2,flip")
PREPARED = Preparation("channel", affine=([[[0.2]], [[0.5]]], [[[0.5]], [[0.25]]]))
PATHS = {
    "sequential": SEQUENTIAL,
    "traced": ExecutionSettings("vectorized", 16, "trace"),
    "traced alone": ExecutionSettings("sequential", 1, "trace"),
    "chunks of two": ExecutionSettings("vectorized", 2, "no"),
}
if compiler.find_compiler():
    PATHS["machine code"] = ExecutionSettings("vectorized", 16, "yes")


def images(clients=4, seed=0):
    """Unequal clients with small images of two channels, black where nothing is."""
    rng = np.random.default_rng(seed)
    x, y, parts, start = [], [], {"train": [], "validation": [], "test": []}, 0
    for i in range(clients):
        for part, count in (("train", 5 + 3 * i), ("validation", 4), ("test", 6)):
            y.append(rng.integers(0, 3, count))
            x.append(rng.normal(size=(count, 2, 6, 5)) + y[-1][:, None, None, None])
            parts[part].append(np.arange(start, start + count))
            start += count
    return Federation(
        name="images",
        x=torch.as_tensor(np.concatenate(x), dtype=torch.get_default_dtype()),
        y=torch.as_tensor(np.concatenate(y)),
        classes=3,
        **parts,
        groups=np.arange(clients) % 2,
        names=[str(i) for i in range(clients)],
        preparation=PREPARED,
    )


def network():
    return Model(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(90, 3)
        ),
        name="small",
    )


def run(name="fedavg", train=MOVED, **more):
    return play(name, images(), [network()], train=train, **more)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["fedavg", "ditto", "perfedavg", "fedrep"])
def test_augmented_training_is_the_same_on_every_path(name, path):
    with float64():
        found = run(name, settings=PATHS[path])
        assert not any(one.why for one in found.engine._steppers.values())
        wanted = personal(run(name))
        assert_same(wanted, personal(found))
        plain = personal(run(name, train=TRAIN))
        assert all((plain[i] - wanted[i]).abs().max() > 1e-4 for i in plain)


def test_padding_changes_nothing(monkeypatch):
    with float64():
        plain, original = personal(run()), batches.padded_batch_size
        monkeypatch.setattr(
            batches, "padded_batch_size", lambda plan, largest: original(plan, largest) + 3
        )
        assert_same(plain, personal(run()))


def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole = personal(run(rounds=4, participation=0.6))
    write_checkpoint(run(rounds=4, until=2, participation=0.6), tmp_path)
    again = run(rounds=4, until=0, participation=0.6)
    restore_checkpoint(again, list_checkpoints(tmp_path)[-1])
    again.go()
    assert_same(whole, personal(again), 0)


def read(feed, plan, client, round=1):
    """All batches of a client, and the places of their rows."""
    taken, each = feed.batches(plan, "train-0", Moment("train", round), [client])
    found = [taken.of_first(s, 1) for s in range(each[0])]
    return torch.cat([b.x[0][b.mask[0] > 0] for b in found]), torch.cat(
        [b.place[0][b.mask[0] > 0] for b in found]
    )


def test_rows_are_moved_as_the_named_stream_says_and_only_training_ones():
    federation = images()
    feed = batches.Feed.of(federation, seed=7)
    plan = MOVED.plan(epochs=2)
    found, places = read(feed, plan, 3)
    stored = federation.x[federation.train[3][places]]
    rng = stream(7, "augment", "batches", "train", 1, "train-0", 3)
    drawn = rng.integers(0, 5 * 5 * 2, len(stored))
    down, right, flip = drawn // 10 - 2, drawn // 2 % 5 - 2, drawn % 2
    black = torch.tensor([-0.4, -2.0]).reshape(2, 1, 1).expand(2, 6, 5)
    moves = torch.from_numpy(np.stack([down, right, flip], 1))
    assert torch.equal(found, move_images(stored, moves, black))
    assert (found == -2.0).any()  # a black border
    for part in ("validation", "train"):
        plain, places = read(feed, BatchPlan(part=part, augment="flip" * (part != "train")), 3)
        assert torch.equal(plain, federation.x[getattr(federation, part)[3][places]])
    other, _ = read(feed, plan, 3, round=2)
    assert not torch.equal(found.sort(0)[0], other.sort(0)[0])


def test_evaluation_reads_images_as_they_are():
    """The metrics of the same models are the same, whatever training does to its rows."""
    moved, plain = run(), run(until=0, train=TRAIN)
    found = [
        loop.engine.evaluate(moved.everyone, moved.payload(), moved.when(), final=True)
        for loop in (moved, plain)
    ]
    assert found[0].keys() == found[1].keys()
    for key, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][key])


def test_an_actor_s_shard_has_the_same_border():
    federation = images()
    assert torch.equal(shard_of(federation, [1]).black, federation.black)


@pytest.mark.xdist_group("ray")  # one process, one cluster
def test_actors_give_the_same_run():
    ray = pytest.importorskip("coterie.engines.ray.engine")
    pytest.importorskip("ray")
    with float64():
        here, there = run(), run(until=0)
        pool = ray.ActorPool(actors=2)
        try:
            local = there.engine
            setup = ray.EngineSetup(
                federation=there.federation,
                models=local.models,
                programs=local.programs,
                architecture=local.architecture,
                seed=local.seed,
                settings=list(local.settings),
            )
            engine = ray.RayEngine(setup, pool=pool)
            there = type(there)(engine, there.federation, there.schedule, there.seed)
            there.go()
            assert_same(personal(here), personal(there))
        finally:
            pool.close()


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_sites_equal_the_local_engine(name, tmp_path):
    with float64(), town(tmp_path, name, images(), [network()], train=MOVED) as here:
        loop = here.loop(Schedule(rounds=2, eval_every=1000))
        loop.go()
        finish(loop)
        wanted = personal(run(name))
        for i, tensors in here.models_at_home().items():
            point = here.models[0].start(0)
            found = torch.cat([tensors[k].reshape(-1) for k in point.params])
            torch.testing.assert_close(found, wanted[i], rtol=1e-9, atol=1e-9)


def test_what_is_no_image_is_refused():
    with pytest.raises(BadInput, match=r"crops and flips images, but 'tiny' has rows of shape"):
        play("fedavg", train=MOVED)


def never_moved(model, train):
    """FedAvg whose pass is not one of `train.plan`."""
    base: Method = fedavg(model, train)
    trip = base.round[0]
    return base._replace(round=(trip._replace(passes=(Pass(trip.passes[0].step, BatchPlan()),)),))


def test_a_method_that_would_ignore_it_refuses_it(monkeypatch, tmp_path):
    from coterie.running.execute import execute
    from helpers.runs import experiment

    monkeypatch.setitem(METHODS, "never", never_moved)
    settings = experiment(method="never", dataset="digits", augment="flip", rounds=1)
    with pytest.raises(BadInput, match="augment = flip changes nothing in never"):
        execute(settings, tmp_path / "run", lambda report: None)
