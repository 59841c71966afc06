"""What stands between uploads and the server."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.guard import Guard
from coterie.core.method import Replies
from coterie.core.point import Point, mean
from coterie.experiment.config import Experiment, change_options
from coterie.methods.declare import declaration_of
from coterie.methods.registry import METHODS
from coterie.running.assembly import assemble, open_loop
from coterie.running.upload_guard import UploadGuard, attackers_of, check_guard
from helpers.federations import personal, play, tiny


def replies(rows) -> Replies:
    upload = Point({"w": torch.tensor(rows)})
    whole = Replies(torch.arange(len(rows)), upload, torch.ones(len(rows)))
    return whole._replace(groups=(whole,))


def sent(_: int) -> Point:
    return Point({"w": torch.tensor([1.0, 1.0])})


ROWS = [[2.0, 1.0], [1.0, 3.0], [1.0, 2.0], [2.0, 2.0]]


def test_an_open_gate_changes_nothing():
    given = replies(ROWS)
    assert UploadGuard().filter(given, sent, "train", 0, 0) is given


@pytest.mark.parametrize(("attack", "wanted"), [("sign-flip", [1.0, -1.0]), ("scale", [1, -99])])
def test_an_attacker_turns_its_change_round_and_nobody_elses(attack, wanted):
    gate = UploadGuard(Guard(attack=attack, attackers=0.2), attackers=frozenset({1}))
    got = gate.filter(replies(ROWS), sent, "train", 0, 0)
    assert got.upload.params["w"].tolist() == [ROWS[0], wanted, *ROWS[2:]]
    assert got.groups[0].upload is got.upload


def test_noise_of_an_attacker_is_ten_times_its_change():
    gate = UploadGuard(Guard(attack="noise", attackers=0.2), attackers=frozenset({1}))
    given = replies(torch.ones(4, 5000).tolist())
    origin = Point({"w": torch.zeros(5000)})
    moved = gate.filter(given, lambda i: origin, "train", 0, 0).upload.params["w"] - 1
    assert moved[1].norm() == pytest.approx(10 * 5000**0.5, rel=0.05)
    assert not moved[[0, 2, 3]].any()


def test_a_krum_gate_leaves_out_what_a_scaling_attacker_sent():
    rows = [[1.0, 1.0 + 0.01 * k] for k in range(7)] + [[1.0, 2.0]]
    guard = Guard(robust="krum", hostile=0.2, attack="scale", attackers=0.1)
    got = UploadGuard(guard, attackers=frozenset({7})).filter(replies(rows), sent, "train", 0, 0)
    assert got.ids.tolist() == list(range(7))
    assert len(got.sizes) == len(got.upload.params["w"]) == 7


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_averages_by_its_replies_exactly_where_it_says_so(name, monkeypatch):
    """What `--robust` replaces is what the server really uses."""
    calls = []

    def spy(upload, weights):
        calls.append(1)
        return mean(upload, weights)

    monkeypatch.setattr(
        UploadGuard, "filter", lambda self, replies, send, *when: replies._replace(average=spy)
    )
    play(name)
    assert bool(calls) == (declaration_of(METHODS[name]).uploads in ("mean", "models"))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_that_uploads_nothing_says_so(name):
    sizes = []
    loop = play(name, until=0)
    original = loop.engine.exchange

    def exchange(trip):
        outcome = original(trip)
        sizes.append(outcome.traffic.up)
        return outcome

    loop.engine.exchange = exchange
    loop.go()
    assert (sum(sizes) == 0) == (declaration_of(METHODS[name]).uploads == "nothing")


def experiment(**settings) -> Experiment:
    engine = {"path": "vectorized", "width": 8, "compile": "no"}
    return change_options(
        Experiment(), {"method": "fedavg", "dataset": "digits", "rounds": 2, **engine, **settings}
    )


def loop_of(**settings):
    return open_loop(assemble(experiment(**settings), tiny(10)))


def test_results_are_of_honest_clients_only():
    loop = loop_of(attack="scale", attackers=0.2)
    loop.go()
    column = loop.evaluate()["personal", "test", "accuracy"]
    assert {i for i in range(10) if np.isnan(column[i])} == loop.gate.attackers
    assert len(loop.gate.attackers) == 2


def test_who_attacks_depends_on_the_seed_alone():
    guard = Guard(attack="scale", attackers=0.3)
    assert attackers_of(guard, 20, 1) == attackers_of(guard._replace(attack="noise"), 20, 1)
    assert attackers_of(guard, 20, 1) != attackers_of(guard, 20, 2)
    assert len(attackers_of(guard, 20, 1)) == 6


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "norm"])
def test_a_robust_rule_holds_a_model_that_a_plain_mean_loses(rule):
    """Twenty alike clients, four of which send -50 times their change."""
    federation, far = tiny(20, groups=1), {}
    for robust in ("none", rule):
        settings = {"attack": "scale", "attackers": 0.2, "robust": robust}
        loop = open_loop(assemble(experiment(**settings), federation))
        loop.go()
        clean = open_loop(assemble(experiment(), federation))
        clean.go()
        far[robust] = float((personal(loop)[0] - personal(clean)[0]).norm())
    assert far[rule] < far["none"] / 20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attack": "scale"}, "give both"),
        ({"attackers": 0.2}, "give both"),
        ({"hostile": 0.1}, "hostile = 0.1 is for --robust trimmed or krum"),
        ({"dp_clip": 1.0}, "without --dp"),
        ({"dp": "client"}, "needs a bound"),
        ({"dp": "client", "dp_clip": 1.0}, "one of them"),
        (
            {"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0, "robust": "norm"},
            "the guarantee covers a plain mean",
        ),
    ],
)
def test_a_word_without_effect_is_refused(settings, said):
    with pytest.raises(BadInput, match=said):
        assemble(experiment(**settings), tiny(10))


@pytest.mark.parametrize(
    ("method", "guard", "said"),
    [
        ("ktpfl", Guard(robust="median"), "ktpfl forms none"),
        ("local", Guard(robust="norm"), "local forms none"),
        ("local", Guard(attack="scale", attackers=0.2), "local uploads nothing"),
        ("fedavg", Guard(attack="scale", attackers=0.99), "leaves nobody"),
    ],
)
def test_a_guard_that_does_not_fit_is_refused_with_the_reason(method, guard, said):
    with pytest.raises(BadInput, match=said):
        check_guard(guard, method, declaration_of(METHODS[method]), 1, 10)
