"""Optimizers, schedules and kept optimizers in every method: the same on every path, or refused."""

import pytest
import torch

from coterie.core.checkpoint import list_checkpoints
from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.engines.local.native import compiler
from coterie.engines.settings import ExecutionSettings
from coterie.methods.declare import refused_of, unused_of
from coterie.methods.registry import METHODS
from coterie.running.execute import restore_checkpoint, write_checkpoint
from helpers.federations import (
    SEQUENTIAL,
    TRAIN,
    assert_same,
    float64,
    personal,
    play,
)

COMPILED = ExecutionSettings("vectorized", 16, "yes")
TRACED = ExecutionSettings("vectorized", 16, "trace")
ADAM = TRAIN._replace(
    lr=0.02,
    optimizer="adam:beta2=0.9",
    clip_norm=0.5,
    weight_decay=0.01,
    lr_schedule="cosine:rounds=2:end=0.1:per=step",
)


def honours(*options):
    """The methods that use all these words of [train]."""
    return [
        name
        for name, build in METHODS.items()
        if not set(options)
        & {*refused_of(build), *(w for w, c in unused_of(build).items() if not c)}
    ]


def settings():
    found = [pytest.param(SEQUENTIAL, id="sequential"), pytest.param(TRACED, id="trace")]
    return [*found, pytest.param(COMPILED, id="compiled")] if compiler.find_compiler() else found


@pytest.mark.parametrize("path", settings())
@pytest.mark.parametrize("name", honours("optimizer", "clip_norm", "lr_schedule"))
def test_an_optimizer_with_a_schedule_is_the_same_on_every_path(name, path):
    with float64():
        found = play(name, train=ADAM, settings=path)
        assert not any(one.why for one in found.engine._steppers.values())
        assert_same(personal(play(name, train=ADAM)), personal(found))


def test_a_round_of_a_schedule_is_a_round_at_that_rate():
    """Halved every round: what rounds at those rates reach one after another."""
    with float64():
        train = TRAIN._replace(lr=0.2, lr_schedule="exponential:gamma=0.5", momentum=0.5)
        found = play("fedavg", rounds=3, train=train)
        position = None
        for number, rate in enumerate([0.2, 0.1, 0.05]):
            loop = play("fedavg", rounds=3, until=0, train=TRAIN._replace(lr=rate, momentum=0.5))
            loop.position = position or loop.position
            loop.go(until=number + 1)
            position = loop.position
        assert_same(personal(found), personal(loop))


def test_fine_tuning_before_use_has_the_rate_itself():
    with float64():
        gone = TRAIN._replace(lr_schedule="step:every=1:gamma=0.000001")
        loop = play("finetune", rounds=3, train=gone)
        own, common = personal(loop), personal(loop, "global")
        assert all((own[i] - common[i]).abs().max() > 0.01 for i in own)


def test_a_kept_optimizer_goes_on_where_its_round_ended():
    """Two rounds of one whole-batch epoch are one round of two."""
    whole = Train(batch_size=100, lr=0.05, optimizer="adam", local_epochs=1)
    with float64():
        once = personal(play("local", rounds=1, train=whole._replace(local_epochs=2)))
        kept = personal(play("local", rounds=2, train=whole._replace(keep_optimizer=True)))
        assert_same(once, kept)
        fresh = personal(play("local", rounds=2, train=whole))
        assert all((fresh[i] - once[i]).abs().max() > 1e-3 for i in once)


KEPT = TRAIN._replace(lr=0.02, optimizer="adam:eps=0.0001", keep_optimizer=True)


@pytest.mark.parametrize("name", honours("optimizer", "keep_optimizer"))
def test_kept_optimizers_are_the_same_on_both_paths_and_resumed(name, tmp_path):
    given = {"rounds": 3, "train": KEPT, "participation": 0.6}
    with float64():
        whole = personal(play(name, **given))
        assert_same(whole, personal(play(name, settings=SEQUENTIAL, **given)))
        write_checkpoint(play(name, until=2, **given), tmp_path)
        again = play(name, until=0, **given)
        restore_checkpoint(again, list_checkpoints(tmp_path)[-1])
        again.go()
        assert_same(whole, personal(again), 0)


def test_an_optimizer_that_keeps_nothing_is_not_kept():
    with pytest.raises(BadInput, match="the optimizer of ditto keeps nothing from step to step"):
        play("ditto", train=TRAIN._replace(keep_optimizer=True))


def test_layers_that_rest_keep_their_optimizer_as_it_was():
    """FedRep's body begins with the full bias correction of Adam's first step, whatever its head
    has done: the first step of every parameter has the length of the rate.
    """
    with float64():
        train = TRAIN._replace(batch_size=100, lr=0.01, optimizer="adam")
        loop = play("fedrep", rounds=1, train=train, options={"head_epochs": 7}, until=0)
        start = {k: a.clone() for k, a in loop.payload()(0).base.params.items()}
        loop.go()
        moved = loop.payload()(0).base.params["0.bias"] - start["0.bias"]
        lengths = moved.abs()
        assert float(lengths.max()) == pytest.approx(0.01, rel=1e-3)


def test_clipping_bounds_what_a_step_moves():
    with float64():
        train = TRAIN._replace(batch_size=100, lr=1.0, clip_norm=0.1)
        loop = play("local", rounds=1, train=train, until=0)
        before = personal(loop)
        loop.go()
        after = personal(loop)
        assert all(float((after[i] - before[i]).norm()) <= 0.1 + 1e-12 for i in after)
        assert any(float((after[i] - before[i]).norm()) > 0.09 for i in after)


def test_scaffold_s_variates_count_what_a_scheduled_step_moves():
    """c_i of whole-batch steps is the mean gradient, however the rate moved within the round."""
    with float64():
        found = []
        for schedule in ("constant", "cosine:rounds=2:end=0.5:per=step"):
            train = TRAIN._replace(batch_size=100, local_steps=3, lr=1e-6, lr_schedule=schedule)
            loop = play("scaffold", rounds=1, train=train)
            found.append(torch.cat([a.flatten() for a in loop.position.server.c.params.values()]))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)
