"""The timing trial chooses, and touches nothing that the run uses."""

import pytest
import torch

from coterie.core.method import stages_of
from coterie.engines.base import ExchangeRequest
from coterie.engines.local import autotune, timing_cache
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from helpers.federations import assert_same, personal, play


def trip_of(loop, send):
    everyone = loop.everyone
    return ExchangeRequest(
        number=0,
        when=loop.when(),
        clients=everyone,
        send=send,
        answered=set(everyone),
        averaged=set(everyone),
    )


def rude(model, train):
    """FedAvg whose start hands out the payload itself, whose step draws from the global stream and
    writes into its carry.
    """
    (stage,) = stages_of(METHODS["fedavg"](model, train))
    (exchange,) = stage.method.round

    def step(carry, batch):
        for leaf in carry.params.values():
            leaf.add_(torch.rand(()))
        return carry

    passes = tuple(p._replace(step=step) for p in exchange.passes)
    changed = exchange._replace(start=lambda state, payload: payload, passes=passes)
    return stage.method._replace(round=(changed,))


def test_the_trial_leaves_payloads_states_random_streams_and_threads_as_they_were():
    loop = play(rude, until=0, settings=ExecutionSettings("sequential", 0, "no"))
    engine, sent = loop.engine, loop.payload()(0)
    before = {k: t.clone() for k, t in sent.params.items()}
    random, threads = torch.random.get_rng_state(), torch.get_num_threads()
    chosen = engine.choose(trip_of(loop, lambda i: sent))
    assert not chosen[0].open
    assert all(torch.equal(t, before[k]) for k, t in sent.params.items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert torch.get_num_threads() == threads
    assert not any(i in engine.states[0] for i in loop.everyone)


@pytest.mark.parametrize("name", ["fedavg", "persfl", "selffl"])
def test_a_run_whose_settings_were_chosen_equals_one_whose_settings_were_given(name):
    loop = play(name, settings=ExecutionSettings())
    assert_same(personal(loop), personal(play(name, settings=loop.engine.settings[0])), 0.0)


def test_what_is_given_is_kept_and_only_the_rest_is_chosen(monkeypatch):
    monkeypatch.setattr(
        autotune, "time_pass", lambda case, number, path, width, compiled: 1.0 / (1 + width)
    )
    for given, wanted in (
        (ExecutionSettings("sequential", 3, "auto"), ExecutionSettings("sequential", 3, "no")),
        (ExecutionSettings("auto", 0, "yes"), ExecutionSettings("vectorized", 5, "yes")),
        (ExecutionSettings("vectorized", 2, "auto"), ExecutionSettings("vectorized", 2, "no")),
    ):
        loop = play("fedavg", until=0, settings=given)
        assert loop.engine.choose(trip_of(loop, loop.payload())) == [wanted]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({"yes": 2e3, "trace": 1e3}, "trace"),
        ({"yes": 1e3, "trace": 2e3}, "yes"),
        ({"yes": 1e-6, "trace": 1e-9}, "yes"),  # a short run is not worth the trial
    ],
)
def test_long_runs_with_convolutions_take_the_faster_of_machine_code_and_torch(
    monkeypatch, tmp_path, times, wanted
):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(autotune, "can_compile", lambda case: True)
    monkeypatch.setattr(autotune.TuningCase, "dense", property(lambda case: False))
    tried = []

    def seconds(case, number, path, width, option):
        tried.append(option)
        return times[option]

    monkeypatch.setattr(autotune, "time_pass", seconds)
    loop = play("fedavg", until=0, settings=ExecutionSettings())
    for _ in range(2):  # the second time it is remembered
        (found,) = loop.engine.choose(trip_of(loop, loop.payload()))
        assert found.compile == wanted
        assert found.path == ("sequential" if wanted == "trace" else "vectorized")
    assert tried == (["yes"] if times["yes"] < 1 else ["yes", "trace"])
    given = ExecutionSettings("auto", 0, "yes")
    assert play("fedavg", until=0, settings=given).engine.choose(trip_of(loop, loop.payload())) == [
        ExecutionSettings("vectorized", 5, "yes")
    ]


def test_what_a_short_run_was_given_does_not_decide_for_a_long_one(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(autotune, "can_compile", lambda case: True)
    monkeypatch.setattr(autotune.TuningCase, "dense", property(lambda case: False))
    cases = []

    def seconds(case, number, path, width, option):
        cases.append(case)
        return {"yes": 2e-6, "trace": 1e-6}[option]

    monkeypatch.setattr(autotune, "time_pass", seconds)
    loop = play("fedavg", until=0, settings=ExecutionSettings())
    assert loop.engine.choose(trip_of(loop, loop.payload()))[0].compile == "yes"
    long = cases[0]._replace(given=ExecutionSettings(), rounds=10**9)
    assert autotune.choose_settings(long, free_threads=False).settings.compile == "trace"


def test_what_an_engine_has_found_does_not_hold_for_another(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    timing_cache.remember(["a case"], {"compile": "trace"})
    assert timing_cache.recall(["a case"]) == {"compile": "trace"}
    monkeypatch.setattr(timing_cache, "hash_engine", lambda: "with code for more networks")
    assert timing_cache.recall(["a case"]) is None


def test_a_chunk_of_machine_code_has_no_room_for_what_stacks_need_between_layers():
    assert (
        autotune.compute_max_width(1_000_000, compiled=True) == 89
    )  # 12 bytes of a parameter, below 1 GB
    assert autotune.compute_max_width(1_000_000) == 33
