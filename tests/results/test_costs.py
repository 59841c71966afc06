"""Cost: the time model of UCFL worked by hand, and every axis of a real run's table."""

from dataclasses import replace
from math import inf, log, nan

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie.core.errors import BadInput
from coterie.results import costs as c
from coterie.results.metric_table import curve_of, total_of
from helpers.runs import IMAGES

calm = settings(deadline=None)  # no test may fail because the machine is busy
FAST = {"path": "vectorized", "width": 20, "compile": "no", "threads": 1}
MODEL = 64 * 6 + 6 + 60 + 10  # parameters of IMAGES' network

shares = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_the_round_that_reaches_a_target_is_the_first():
    assert c.rounds_to_reach([5, 10, 15, 20], [0.4, nan, 0.7, 0.6], 0.6) == 15
    assert c.rounds_to_reach([5, 10], [0.4, 0.5], 0.5) == 10
    assert c.rounds_to_reach([5, 10], [0.4, nan], 0.5) is None


@calm
@given(shares, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_target_is_not_reached_sooner(values, a, b):
    rounds = np.arange(1, len(values) + 1)
    low, high = (c.rounds_to_reach(rounds, values, target) or inf for target in sorted((a, b)))
    assert low <= high


def test_harmonic_numbers():
    assert [c.harmonic(m) for m in (0, 1, 2, 4)] == pytest.approx([0, 1, 1.5, 25 / 12])


@calm
@given(st.integers(1, 500))
def test_harmonic_numbers_stay_near_the_logarithm(m):
    assert log(m + 1) < c.harmonic(m) <= 1 + log(m)


def test_the_slowest_of_a_hundred_is_expected_when_the_formula_says():
    slowest = 1 + np.random.default_rng(0).exponential(1, (20_000, 100)).max(axis=1)
    assert slowest.mean() == pytest.approx(1 + c.harmonic(100), abs=0.05)  # 6.19


def test_time_of_a_round_worked_by_hand():
    """100 users, rho 4, T_min = 1/mu = 1: 100 streams 506, FedAvg 407."""
    assert c.round_time(100, 100, 4, 1, 1) == pytest.approx(506.19, abs=0.01)
    assert c.round_time(1, 100, 4, 1, 1) == pytest.approx(407.19, abs=0.01)
    assert c.round_time(3, 10, 2, 1, inf) == 3 + 1 + 20
    assert c.round_time(3, 10, 2, 1, inf, uplink="parallel") == 3 + 1 + 2


def test_elapsed_time_adds_the_rounds():
    assert c.simulate_rounds([1, 2, 4], [10, 10, 5], 2, 1, inf).tolist() == [22, 45, 60]


def test_bad_rounds_are_refused():
    with pytest.raises(BadInput, match="did you mean 'serial'"):
        c.round_time(1, 2, 1, 1, 1, uplink="seriel")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="at least 1 client"):
        c.round_time(1, 0, 1, 1, 1.0)
    with pytest.raises(BadInput, match="mu = 0: give a rate above 0"):
        c.round_time(1, 3, 1, 1, 0.0)


@calm
@given(
    st.integers(1, 50), st.integers(1, 50), st.floats(0, 10), st.floats(0, 10), st.floats(0.1, 10)
)
def test_one_stream_more_costs_one_downlink_and_a_shared_uplink_never_more(k, m, rho, t_min, mu):
    serial = c.round_time(k, m, rho, t_min, mu)
    assert c.round_time(k + 1, m, rho, t_min, mu) == pytest.approx(serial + 1)
    assert c.round_time(k, m, rho, t_min, mu, "parallel") == pytest.approx(serial - (m - 1) * rho)
    assert serial >= k + t_min


# From the table of a run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedAvg with half of the clients, some of them lost; UCFL with two streams; all in four rounds
    measured twice.
    """
    folder = tmp_path_factory.mktemp("costs")
    options = IMAGES | FAST | {"num_clients": 6, "rounds": 4, "eval_every": 2, "models": False}
    some = {"participation": 3, "dropout_clients": 0.3}
    return {
        "fedavg": coterie.run("fedavg", out=folder / "fedavg", **options),
        "sampled": coterie.run("fedavg", out=folder / "sampled", **options | some),
        "ucfl": coterie.run("ucfl", streams=2, out=folder / "ucfl", **options),
        "local": coterie.run("local", out=folder / "local", **options),
    }


def test_costs_of_a_run_are_those_of_its_table(runs):
    found = c.costs_of(runs["fedavg"])
    assert found.round.tolist() == [1, 2, 3, 4]
    assert found.clients.tolist() == [6, 6, 6, 6]
    assert found.down.tolist() == found.up.tolist() == [6 * 4 * MODEL] * 4
    assert found.broadcast.tolist() == [4 * MODEL] * 4
    for name, column in zip(
        ("bytes_down", "bytes_broadcast", "bytes_up", "steps", "gradients", "seconds"),
        found[2:],
        strict=True,
    ):
        assert column.sum() == pytest.approx(total_of(runs["fedavg"].table, name))
    last = found.sum()
    assert last.up.tolist() == [6 * 4 * MODEL * k for k in (1, 2, 3, 4)]
    assert last.clients.tolist() == found.clients.tolist()


@pytest.mark.parametrize("uplink", ["serial", "parallel"])
@pytest.mark.parametrize("system", c.SYSTEMS)
def test_simulated_time_of_fedavg_is_that_of_one_stream(runs, system, uplink):
    found = c.simulated_time(runs["fedavg"], system, uplink)
    assert found == pytest.approx(
        c.simulate_rounds([1] * 4, [6] * 4, *c.SYSTEMS[system], uplink), rel=1e-12
    )


def test_simulated_time_counts_the_clients_that_answered(runs):
    run = runs["sampled"]
    answered = c.costs_of(run).clients
    assert set(answered.tolist()) != {3}  # somebody was lost
    assert c.costs_of(run).up.tolist() == [4 * MODEL * m for m in answered]
    expected = [1 + 1 + c.harmonic(m) + 4 * m for m in answered]
    assert c.simulated_time(run, "slow uplink") == pytest.approx(np.cumsum(expected))


@pytest.mark.parametrize("system", c.SYSTEMS)
def test_simulated_time_of_ucfl_is_that_of_its_streams(runs, system):
    """In the round before, the upload is a gradient and its variance: one number more than a
    model.
    """
    rho, t_min, mu = c.SYSTEMS[system]
    found = np.diff(c.simulated_time(runs["ucfl"], system), prepend=0)
    assert found[0] == pytest.approx(c.round_time(1, 6, rho * (MODEL + 1) / MODEL, t_min, mu))
    assert found[1:] == pytest.approx([c.round_time(2, 6, rho, t_min, mu)] * 4)


def test_local_sends_next_to_nothing_and_its_clients_compute(runs):
    """A key of eight bytes says where to start."""
    found = c.costs_of(runs["local"])
    assert (found.broadcast.tolist(), found.up.tolist()) == ([8] * 4, [0] * 4)
    assert c.simulated_time(runs["local"], "wired") == pytest.approx(
        (1 + 2 / MODEL) * np.arange(1, 5)
    )


def test_a_table_that_does_not_say_who_answered_counts_the_clients_asked(runs):
    run = runs["sampled"]
    old = replace(run, table=run.table.filter(pc.field("metric") != "clients"))
    assert c.costs_of(old).clients.tolist() == [3] * 4


def test_models_of_several_sizes_count_by_their_clients(runs):
    about = runs["local"].about | {
        "models": [{"parameters": 100}, {"parameters": 400}],
        "architecture": [0, 1, 0, 0, 1, 0],
    }
    assert c.model_bytes_of(replace(runs["local"], about=about)) == 4 * 200
    assert c.model_bytes_of(runs["local"]) == 4 * MODEL


def test_accuracy_is_given_against_every_axis(runs):
    run = runs["ucfl"]
    rounds, means = curve_of(run.table, "accuracy", "validation")
    assert rounds.tolist() == [1, 2, 4, 5]  # the end of each stage, and every second round
    found = {axis: c.accuracy_against(run, axis, "validation") for axis in c.AXES}
    for _, y in found.values():
        assert y.tolist() == means.tolist()
    spent = c.costs_of(run).sum()
    at = [0, 1, 3, 4]
    assert found["round"][0].tolist() == rounds.tolist()
    assert found["bytes"][0].tolist() == (spent.down + spent.up)[at].tolist()
    assert found["broadcast"][0].tolist() == (spent.broadcast + spent.up)[at].tolist()
    assert found["steps"][0].tolist() == spent.steps[at].tolist()
    assert found["time"][0].tolist() == c.simulated_time(run)[at].tolist()
    wired = c.accuracy_against(run, "time", system="wired")[0]
    assert wired.tolist() == c.accuracy_against(run, "time", system=c.System(1, 1, inf))[0].tolist()
    assert (wired < found["time"][0]).all()
    assert c.costs_until(run, 4, "bytes") == found["bytes"][0][2]


def test_unknown_axes_and_systems_are_refused(runs):
    with pytest.raises(BadInput, match="did you mean 'bytes'"):
        c.accuracy_against(runs["local"], "byte")
    with pytest.raises(BadInput, match="did you mean 'wired'"):
        c.simulated_time(runs["local"], "wire")
