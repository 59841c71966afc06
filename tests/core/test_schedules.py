"""Schedules of the learning rate are torch's, in rounds; steps move on within a round."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, StepLR

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import begin, descend
from coterie.core.point import Point, zeros
from coterie.core.schedules import SCHEDULES, compute_shares, fill_rounds, share_at

ROUNDS = 12
THEIRS = {
    "step:every=4:gamma=0.5": lambda o: StepLR(o, 4, 0.5),
    "exponential:gamma=0.9": lambda o: ExponentialLR(o, 0.9),
    f"cosine:rounds={ROUNDS}": lambda o: CosineAnnealingLR(o, ROUNDS),
    f"cosine:rounds={ROUNDS}:end=0.2": lambda o: CosineAnnealingLR(o, ROUNDS, eta_min=0.2),
}


@pytest.mark.parametrize("spec", THEIRS)
def test_a_schedule_over_rounds_is_torch_s(spec):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    theirs = THEIRS[spec](optimizer)
    for number in range(ROUNDS):
        assert share_at(spec, number) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_rises_evenly_and_is_never_zero(name):
    spec = fill_rounds(f"{name}:warmup=4", 2 * ROUNDS)
    found = [share_at(spec, number) for number in range(2 * ROUNDS)]
    assert found[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert share_at(spec, 4 + 3) == share_at(fill_rounds(name, 2 * ROUNDS - 4), 3)


def test_steps_go_on_where_the_last_round_ended_whatever_a_client_has():
    spec = f"cosine:rounds={ROUNDS}:per=step"
    once, again = (compute_shares(spec, number, [2, 5, 0]) for number in (3, 4))
    assert once.shape == (3, 5)
    right = [share_at(spec, 3 + s / 5) for s in range(5)]
    assert once[1].tolist() == pytest.approx(right)
    assert once[0, 1] == pytest.approx(share_at(spec, 3.5))
    assert float(again[0, 0]) == float(again[1, 0]) == pytest.approx(share_at(spec, 4))
    assert (compute_shares(f"cosine:rounds={ROUNDS}", 3, [2, 5]) == share_at(spec, 3)).all()


def test_a_cosine_takes_the_rounds_of_the_run_where_it_has_none():
    assert Train(lr_schedule="cosine:end=0.1").over(7).lr_schedule == "cosine:end=0.1:rounds=7"
    assert Train(lr_schedule="cosine:rounds=3").over(7).lr_schedule == "cosine:rounds=3"
    assert Train().over(7) == Train()
    with pytest.raises(BadInput, match="it has 5 rounds and 5 of them are its warm-up"):
        Train(lr_schedule="cosine:warmup=5").over(5)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("cosin", "lr_schedule = 'cosin': unknown; did you mean 'cosine'?"),
        ("step:gamma=0", "lr_schedule, gamma of step, = 0: give a number above 0, up to 1"),
        ("exponential:end=0.1", "no option 'end' of exponential"),
        ("constant:per=step", "give it a warmup"),
        ("step:gamma=1", "at gamma = 1 the learning rate never changes"),
        ("exponential:gamma=1:per=step", "at gamma = 1 the learning rate never changes"),
        ("constant:warmup=1", "has no effect: give a warmup of 2 or more"),
        ("step", "takes no step in a run of 10 rounds: the first one comes after 10; lower every"),
        ("step:every=100", "step:every=100 takes no step in a run of 10 rounds"),
        ("step:every=8:warmup=2:per=step", "the first one comes after 10"),
        ("cosine:end=1", "at end = 1 the learning rate never changes"),
    ],
)
def test_a_schedule_that_means_nothing_is_refused(spec, line):
    with pytest.raises(BadInput) as told:
        fill_rounds(spec, 10)
    assert line in str(told.value)


def test_a_step_that_cannot_know_its_rate_is_told():
    """A method that gives `descend` no batch would train at the full rate."""
    w = Point({"a": torch.ones(2)})
    train = Train(lr_schedule="cosine:rounds=9")
    with pytest.raises(TypeError, match="give `descend` the batch"):
        descend(begin(w, train), zeros(w), train)
