"""Laws of Self-FL: what the server and the clients do with uncertainty, and the paper's synthetic
experiment.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Facts, Replies, Stage, Train
from coterie.core.model import Model
from coterie.core.point import Point, flatten, stack
from coterie.experiment.config import Experiment, change_options
from coterie.lab.papers.paper_tables import read_papers
from coterie.methods import uncertainty as law
from coterie.methods.fedavg import fedavg
from coterie.methods.selffl import SelfFLPayload, SelfFLState, SelfFLUpload, init_state, selffl
from coterie.methods.selffl_clusters import by_variance
from coterie.methods.selffl_steps import CAP, CURVED, FLOOR, HISTORY, NONE, SETTLED
from coterie.networks.registry import build_network as net
from coterie.results.metric_table import EVERYONE
from helpers.federations import (
    SEQUENTIAL,
    STACKED,
    TRAIN,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
)

OFF = {"start_rule": False, "adapt_steps": False, "weigh": False}
EXAMPLE = Path(__file__).parents[2] / "examples" / "two_level_gaussian.py"


def example():
    spec = importlib.util.spec_from_file_location("two_level_gaussian", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def uploads_of(rounds, options=None, federation=None, **schedule):
    """A run, and the replies of every round."""
    seen = []

    def watched(model, train):
        method = selffl(model, train, **(options or {}))
        trip = method.round[0]

        def receive(server, replies, rng):
            seen.append(replies)
            return trip.receive(server, replies, rng)

        return method._replace(round=(trip._replace(receive=receive),))

    return play(watched, federation, rounds=rounds, **schedule), seen


def spread(points):
    return float(flatten(points).double().var(0, correction=0).sum())


# The whole method against FedAvg


@pytest.mark.parametrize("weighting", ["size", "equal"])
@pytest.mark.parametrize("schedule", [{}, {"participation": 0.6}])
def test_without_its_three_components_it_is_fedavg(weighting, schedule):
    with float64():
        train = TRAIN._replace(weighting=weighting)
        ours = play(
            "selffl",
            options={**OFF, "l_base": 3, "smooth": False},
            rounds=5,
            train=train,
            **schedule,
        )
        base = play("fedavg", rounds=5, train=train._replace(local_steps=3), **schedule)
        for name, wanted in base.position.server.w.params.items():
            torch.testing.assert_close(
                ours.position.server.theta.params[name], wanted, rtol=0, atol=1e-12
            )
        assert _steps(ours) == _steps(base)


@pytest.mark.parametrize("on", OFF)
def test_each_component_alone_changes_the_model(on):
    with float64():
        ours = play("selffl", options={**OFF, on: True, "l_base": 3}, rounds=5)
        base = play("fedavg", rounds=5, train=TRAIN._replace(local_steps=3))
        apart = [
            (ours.position.server.theta.params[k] - w).abs().max()
            for k, w in base.position.server.w.params.items()
        ]
        assert max(apart) > 1e-4


def test_extra_traffic_is_twelve_bytes_a_client():
    costs = {}
    for name in ("fedavg", "selffl"):
        table = play(name, rounds=1).table.whole().to_pylist()
        costs[name] = sum(
            row["value"] for row in table if row["metric"] in ("bytes_down", "bytes_up")
        )
    assert costs["selffl"] - costs["fedavg"] == 12 * 5


def test_base_steps_of_zero_are_those_of_the_training_table():
    loop = play(
        "selffl", options={**OFF, "l_base": 0}, rounds=2, train=TRAIN._replace(local_epochs=2)
    )
    assert _steps(loop) == _steps(play("fedavg", rounds=2, train=TRAIN._replace(local_epochs=2)))


def test_warm_start_is_fedavg_and_leaves_no_history():
    with float64():
        loop = play("selffl", options={"warm": 3, "l_base": 4}, rounds=2, until=3)
        base = play(
            lambda m, train: (Stage("warm", fedavg(m, train)),),
            rounds=3,
            train=TRAIN._replace(local_steps=4),
        )
        for name, wanted in base.position.server.w.params.items():
            torch.testing.assert_close(
                loop.position.server.w.params[name], wanted, rtol=0, atol=1e-12
            )
        assert [s.name for s in loop.program] == ["warm", "train"]
        loop.go(until=4)
        states = loop.engine.states[0].everything()[1]
        assert states.t.tolist() == [1.0] * 5  # not 4
        assert states.choice.guard.tolist() == [HISTORY] * 5
        assert loop.position.server.var.tolist() == [-1.0] * 5


# Variances


def test_variances_are_those_of_the_models_that_travelled():
    with float64():
        loop, rounds = uploads_of(4)
        assert rounds[0].upload.var.tolist() == [-1.0] * 5  # one model has no variance
        for count in (2, 3, 4):
            for i in range(5):
                models = stack(
                    [
                        Point({k: a[i] for k, a in r.upload.theta.params.items()})
                        for r in rounds[:count]
                    ]
                )
                assert float(rounds[count - 1].upload.var[i]) == pytest.approx(
                    spread(models), rel=1e-9
                )
        assert float(loop.position.server.s0sq) == pytest.approx(
            5 * spread(rounds[-1].upload.theta), rel=1e-9
        )


def test_buffers_enter_no_variance():
    model = tiny_model(norm=True)
    method = selffl(model, TRAIN)
    trip = method.round[0]
    point = model.start(0)
    other = Point({k: a + 1 for k, a in point.params.items()}, point.buffers)
    loud = Point(other.params, {k: b + 100 for k, b in other.buffers.items()})
    uploads = []
    for second in (other, loud):
        state, sent = init_state(point), SelfFLPayload(point, torch.tensor(-1.0), torch.tensor(0.0))
        for model_ in (point, second):
            carry = trip.start(trip.prepare(state, sent, torch.tensor(10)), sent)
            state, upload = trip.finish(
                carry._replace(way=carry.way._replace(w=model_)), state, sent
            )
        uploads.append(upload)
    assert uploads[0].var == uploads[1].var == pytest.approx(0.25 * model.size)
    server = method.init(np.random.default_rng(0), _facts(2, [model]))
    for upload in uploads:  # s0^2 between two clients whose parameters agree
        pair = stack([uploads[0], upload])
        after = trip.receive(
            server, Replies(torch.tensor([0, 1]), pair, torch.tensor([10.0, 10.0])), None
        )
        assert after.s0sq == 0


# The client's choice, on constructed states


def _facts(n, models, rate=1.0):
    zero = torch.zeros(n, dtype=torch.int64)
    return Facts(n, torch.full((n,), 10.0), rate, zero, tuple(models), zero, 3)


def _choice(var=1.0, t=5, s0sq=1.0, others=10.0, rows=10, train=TRAIN, **options):
    """What a client with this history and this payload chooses; TRAIN has B 4 and rate 0.1."""
    model = tiny_model()
    point = model.start(0)
    state = init_state(point)._replace(var=torch.tensor(var), t=torch.tensor(float(t)))
    sent = SelfFLPayload(point, torch.tensor(s0sq), torch.tensor(others))
    options = {"l_max": 40, "l_base": 20, "units": "plain", **options}
    return selffl(model, train, **options).round[0].prepare(state, sent, torch.tensor(rows)).choice


@pytest.mark.parametrize(
    "state", [{"t": 0}, {"t": 1}, {"s0sq": -1.0}, {"others": 0.0}, {"var": float("nan")}]
)
def test_without_history_a_client_takes_a_plain_step(state):
    choice = _choice(**state)
    assert (int(choice.guard), int(choice.steps), float(choice.pull)) == (HISTORY, 20, 0.0)


@pytest.mark.parametrize(
    ("state", "guard", "steps"),
    [
        ({"var": 0.1}, CURVED, 20),  # h = 1
        ({"var": 0.0}, CURVED, 20),  # a model that never moved
        ({"var": 0.0, "s0sq": 0.0}, CURVED, 20),
        ({"var": 0.1, "l_max": 7}, CURVED, 7),
        ({"var": 1.0, "others": 1e15}, SETTLED, 1),
        ({"var": 0.11, "others": 100.0}, FLOOR, 1),  # h = .91, r = .92: l = .04
        ({"var": 100.0, "others": 0.01}, CAP, 40),  # h = .001, r = .5: l = 693
        ({"var": 1.0, "others": 1.0}, NONE, 7),  # h = .1, r = .5: l = 6.6
        ({"var": 1.0, "others": 1.0, "adapt_steps": False}, NONE, 20),
        ({"var": 0.1, "rows": 10, "train": TRAIN._replace(lr=0.0)}, CAP, 40),
    ],
)
def test_each_guard_fires_where_it_should(state, guard, steps):
    choice = _choice(**state)
    assert (int(choice.guard), int(choice.steps)) == (guard, steps)


def test_steps_solve_the_papers_equation():
    choice = _choice(var=1.0, others=1.0)
    assert (1 - float(choice.h)) ** float(choice.raw) == pytest.approx(float(choice.r), rel=1e-5)
    assert float(choice.r) == pytest.approx(1.0 / (1 / 1.0 + 1.0))


def test_units_scale_the_step_size():
    h = {
        units: float(_choice(var=1.0, rows=20, units=units).h)
        for units in ("plain", "per_sample", "per_batch")
    }
    assert h == pytest.approx({"plain": 0.1, "per_sample": 0.1 / 20, "per_batch": 0.1 * 4 / 20})
    assert float(_choice(var=1.0, rows=3, units="per_batch").h) == pytest.approx(
        0.1
    )  # a batch has no more rows than the client


def test_fraction_rule_goes_the_share_of_the_way():
    choice = _choice(var=1.0, others=3.0, steps_rule="fraction")
    assert int(choice.steps) == 10  # r = .75
    assert int(_choice(var=1e6, others=3.0, steps_rule="fraction").guard) == FLOOR


def test_exact_weight_changes_the_share_and_not_the_start():
    paper, exact = _choice(s0sq=2.0, others=1.0), _choice(s0sq=2.0, others=1.0, fl_weight="exact")
    assert float(exact.r) == pytest.approx((1 / 3) / (1 + 1 / 3))
    assert exact.pull == paper.pull == pytest.approx(1 / 3)
    assert exact.steps > paper.steps


def test_start_goes_away_from_the_own_model_and_never_beyond_a_mirror_image():
    model = tiny_model()
    theta, own = model.start(0), model.start(1)
    trip = selffl(model, TRAIN).round[0]
    for others, pull in ((4.0, 1 / 8), (0.01, 1.0)):  # w = 1/2
        state = init_state(own)._replace(var=torch.tensor(1.0), t=torch.tensor(3.0))
        sent = SelfFLPayload(theta, torch.tensor(1.0), torch.tensor(others))
        began = trip.start(trip.prepare(state, sent, torch.tensor(10)), sent).way.w
        for k, a in theta.params.items():
            torch.testing.assert_close(began.params[k], a - pull * (own.params[k] - a))


# The server


def _server(n=4, rate=1.0, **options):
    model = tiny_model()
    method = selffl(model, TRAIN, **options)
    return model, method.round[0], method.init(np.random.default_rng(0), _facts(n, [model], rate))


def _replies(model, ids, var, seeds=None, sizes=None):
    points = stack([model.start(10 + s) for s in (seeds or ids)])
    sizes = torch.tensor(sizes or [10.0] * len(ids))
    return Replies(torch.tensor(ids), SelfFLUpload(points, torch.tensor(var), ()), sizes)


def _mixed(points, weights):
    weights = torch.tensor(weights) / sum(weights)
    return {k: torch.tensordot(weights, a, dims=1) for k, a in points.params.items()}


def _same(point, params):
    for k, a in params.items():
        torch.testing.assert_close(point.params[k], a)


def test_server_weighs_by_both_variances():
    model, trip, server = _server()
    replies = _replies(model, [0, 1, 2, 3], [1.0, 2.0, 3.0, 40.0])
    after = trip.receive(server, replies, None)
    s0sq = 4 * spread(replies.upload.theta)  # the trace of the sum of outer products
    assert float(after.s0sq) == pytest.approx(s0sq, rel=1e-5)
    w = [1 / (s0sq + v) for v in (1.0, 2.0, 3.0, 40.0)]
    _same(after.theta, _mixed(replies.upload.theta, w))
    for m in range(4):
        assert float(trip.send(after, m, None).others) == pytest.approx(sum(w) - w[m], rel=1e-5)


def test_median_stands_for_clients_without_history():
    model, trip, server = _server()
    replies = _replies(model, [0, 1, 2, 3], [1.0, 3.0, 40.0, -1.0])
    after = trip.receive(server, replies, None)
    s0sq = 4 * spread(replies.upload.theta)
    w = [1 / (s0sq + v) for v in (1.0, 3.0, 40.0, 3.0)]
    _same(after.theta, _mixed(replies.upload.theta, w))
    assert float(after.others[0]) == pytest.approx(sum(w[1:]), rel=1e-5)


def test_equal_weights_while_no_variance_is_known_and_where_all_are_zero():
    model, trip, server = _server()
    replies = _replies(model, [0, 1, 2, 3], [-1.0] * 4, sizes=[1.0, 2.0, 3.0, 4.0])
    after = trip.receive(server, replies, None)
    _same(after.theta, _mixed(replies.upload.theta, [1.0] * 4))
    assert after.others.tolist() == [0.0] * 4  # so that clients take plain steps
    replies = _replies(model, [0, 1, 2, 3], [0.0] * 4, seeds=[5] * 4, sizes=[1.0, 2.0, 3.0, 4.0])
    after = trip.receive(server, replies, None)
    assert after.s0sq == 0
    assert after.others.isfinite().all()
    _same(after.theta, _mixed(replies.upload.theta, [1.0] * 4))


def test_one_active_client_keeps_the_old_spread():
    model, trip, server = _server()
    assert trip.receive(server, _replies(model, [2], [1.0]), None).s0sq == -1
    known = trip.receive(server, _replies(model, [0, 1, 2], [1.0, 2.0, 3.0]), None)
    after = trip.receive(known, _replies(model, [2], [1.0], seeds=[7]), None)
    assert after.s0sq == known.s0sq
    _same(after.theta, model.start(17).params)


def test_sums_run_over_the_clients_active_in_the_last_round():
    model, trip, server = _server(rate=0.5, smooth=False)
    after = trip.receive(server, _replies(model, [0, 1], [1.0, 2.0]), None)
    assert float(after.others[0]) == pytest.approx(1 / (float(after.s0sq) + 2), rel=1e-5)
    after = trip.receive(after, _replies(model, [1, 2], [4.0, 3.0]), None)
    s0sq = float(after.s0sq)
    assert float(after.others[0]) == pytest.approx(sum(1 / (s0sq + v) for v in (4, 3)), rel=1e-5)
    assert float(after.others[1]) == pytest.approx(1 / (s0sq + 3), rel=1e-5)


def test_the_spread_is_a_sum_or_a_mean_of_squared_distances():
    model, trip, server = _server()
    replies = _replies(model, [0, 1, 2, 3], [1.0] * 4)
    summed = trip.receive(server, replies, None).s0sq
    averaged = _server(spread="mean")[1].receive(server, replies, None).s0sq
    assert float(averaged) == pytest.approx(spread(replies.upload.theta), rel=1e-5)
    assert float(summed) == pytest.approx(4 * float(averaged), rel=1e-5)


def test_summed_spread_over_active_clients_is_nearly_the_bayes_weight():
    """S_-m is then about 1 / (variance between clients), as in the exact estimate of theta_m."""
    rng = np.random.default_rng(0)
    variance, s2 = 0.5, rng.uniform(0.01, 0.02, 100)
    trusted = law.trust(100 * variance, law.sum_of_others(law.weights(100 * variance, s2)))
    exact = law.trust(variance, law.sum_of_others(law.weights(variance, s2)), "exact")
    np.testing.assert_allclose(trusted, exact, rtol=0.02)
    assert (
        law.trust(variance, law.sum_of_others(law.weights(variance, s2))).min() > 90 * exact.max()
    )


def test_sums_may_run_over_all_clients_ever_seen():
    model, trip, server = _server(rate=0.5, smooth=False, others="seen")
    after = trip.receive(server, _replies(model, [0, 1], [1.0, 2.0]), None)
    assert float(after.others[0]) == pytest.approx(
        1 / (float(after.s0sq) + 2), rel=1e-5
    )  # clients 2 and 3 are unknown
    assert float(after.others[3]) == pytest.approx(
        sum(1 / (float(after.s0sq) + v) for v in (1, 2)), rel=1e-5
    )
    after = trip.receive(
        after, _replies(model, [2, 3], [3.0, -1.0]), None
    )  # 0 and 1 are not active now; the median is 2
    s0sq = float(after.s0sq)
    assert float(after.others[0]) == pytest.approx(sum(1 / (s0sq + v) for v in (2, 3, 2)), rel=1e-5)
    assert float(after.others[3]) == pytest.approx(sum(1 / (s0sq + v) for v in (1, 2, 3)), rel=1e-5)


def test_smoothing_moves_by_the_activity_rate():
    model, trip, server = _server(rate=0.25)
    replies = _replies(model, [0, 2], [1.0, 2.0])
    estimate = _server(rate=0.25, smooth=False)[1].receive(server, replies, None).theta
    after = trip.receive(server, replies, None)
    _same(
        after.theta,
        {k: 0.75 * a + 0.25 * estimate.params[k] for k, a in server.theta.params.items()},
    )


@pytest.mark.parametrize("options", [{}, {"augmented": True}, {"level": "variance"}])
def test_a_newcomer_finds_room(options):
    loop = play("selffl", tiny(), options={"l_base": 2, **options}, rounds=3)
    method = loop.program[0].method
    wider = method.admit(loop.position.server)
    assert len(wider.var) == len(wider.sizes) == 6
    sent = method.round[0].send(wider, 5, None)
    everybody = float(sent.others)
    own = 1 / (float(wider.s0sq) + float(wider.var[0]))
    assert everybody == pytest.approx(float(wider.others[0]) + own, rel=1e-4)
    if wider.clusters:  # it counts as the median client
        assert wider.clusters.of[5] == wider.clusters.of[int(wider.var[:5].argsort()[2])]
    assert isinstance(method.join(sent, None), SelfFLState)


# Clusters


def _grouped(groups, **options):
    model = tiny_model()
    method = selffl(model, TRAIN, level="group", **options)
    facts = _facts(len(groups), [model], 0.5)._replace(groups=torch.tensor(groups))
    return model, method.round[0], method.init(np.random.default_rng(0), facts)


def test_a_silent_cluster_is_loaded_and_counts():
    """Of a cluster the newest models count, of the others what they last said."""
    model, trip, server = _grouped([0, 0, 1, 1, 2])
    first = _replies(model, [0, 1, 2], [1.0, 2.0, 4.0])
    after = trip.receive(server, first, None)
    second = _replies(model, [0, 4], [3.0, 5.0], seeds=[8, 9])
    last = trip.receive(after, second, None)
    assert after.clusters.heard.tolist() == [True, True, False]
    kept = stack([model.start(18), model.start(12), model.start(19)])  # of clients 0, 2 and 4
    _same(last.clusters.models, kept.params)
    s0sq = 2 * spread(second.upload.theta)  # of the active clients, as without clusters
    assert float(last.s0sq) == pytest.approx(s0sq, rel=1e-5)
    _same(last.theta, _mixed(kept, [1 / (s0sq + v) for v in (3.0, 4.0, 5.0)]))
    plain = selffl(model, TRAIN).round[0].receive(after._replace(clusters=()), second, None)
    assert torch.equal(last.others, plain.others)
    for client in range(5):
        _same(trip.send(last, client, None).theta, last.theta.params)


def test_clients_of_one_cluster_make_one_model_by_their_precisions():
    model, trip, server = _grouped([0, 0, 1])
    known = trip.receive(server, _replies(model, [0, 1, 2], [1.0, 1.0, 2.0]), None)
    replies = _replies(model, [0, 1], [2.0, 6.0], seeds=[5, 6])
    after = trip.receive(known, replies, None)
    w = [1 / (float(after.s0sq) + v) for v in (2.0, 6.0)]
    merged = _mixed(replies.upload.theta, w)
    _same(
        after.clusters.models,
        {k: torch.stack([a, known.clusters.models.params[k][1]]) for k, a in merged.items()},
    )
    mean = sum(a * v for a, v in zip(w, (2.0, 6.0), strict=True)) / sum(w)
    assert after.clusters.var.tolist() == pytest.approx([mean, 2.0])


def test_clusters_weigh_by_the_rows_of_their_clients_where_variances_do_not():
    model, trip, server = _grouped([0, 0, 1], weigh=False)
    replies = _replies(model, [0, 1, 2], [1.0, 2.0, 3.0], sizes=[10.0, 30.0, 20.0])
    _same(trip.receive(server, replies, None).theta, _mixed(replies.upload.theta, [10, 30, 20]))


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("level", [{"level": "group"}, {"level": "variance", "clusters": 5}])
def test_a_cluster_for_every_client_is_the_plain_method(level, augmented):
    with float64():
        alone = tiny()._replace(groups=np.arange(5))
        common = {"l_base": 3, "augmented": augmented, "converge_steps": 4}
        plain, ours = (
            play("selffl", alone, options=common | more, rounds=5) for more in ({}, level)
        )
        assert_same(personal(ours), personal(plain))
        for name, wanted in plain.position.server.theta.params.items():
            torch.testing.assert_close(ours.position.server.theta.params[name], wanted)
        assert len(set(ours.position.server.clusters.of.tolist())) == 5


@pytest.mark.parametrize("level", ["group", "variance"])
def test_clusters_agree_on_both_paths_and_note_who_is_where(level):
    with float64():
        runs = [
            play(
                "selffl",
                options={"level": level, "clusters": 2, "l_base": 3},
                rounds=6,
                participation=0.6,
                dropout_clients=0.2,
                settings=settings,
            )
            for settings in (STACKED, SEQUENTIAL)
        ]
        assert_same(*map(personal, runs))
        noted = runs[0].server_notes()["cluster"].tolist()
        assert set(noted) == {0, 1}
        if level == "group":
            assert noted == runs[0].federation.groups.tolist()


def test_clusters_by_variance_hold_alike_variances():
    rng = np.random.default_rng(0)
    for clusters in (1, 2, 3, 7):
        s2 = torch.from_numpy(np.exp(rng.normal(size=50)))
        found = by_variance(s2, clusters)[s2.argsort()]
        assert (found.diff() >= 0).all()  # of three variances the middle one is never apart
        assert found.unique().tolist() == list(range(clusters))
    levels = torch.tensor([1e-3, 5.0, 1.2e-3, 6.0, 1.1e-3, 4.0, 0.9e-3])  # 4 small, 3 large
    assert by_variance(levels, 2).tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert by_variance(torch.ones(4), 3).unique().tolist() == [0]  # all alike
    assert by_variance(levels, 7)[levels.argsort()].tolist() == list(range(7))


def test_true_groups_are_asked_for_where_there_are_none():
    with pytest.raises(BadInput, match="needs true groups"):
        play("selffl", tiny(groups=1), options={"level": "group"})


# Algorithm 2


def test_augmented_version_measures_converged_models_and_averages_the_others():
    with float64():
        options = {"augmented": True, "converge_steps": 30, "l_base": 3}
        loop, rounds = uploads_of(3, options)
        plain, plain_rounds = uploads_of(3, {"l_base": 3})
        for k, a in rounds[
            0
        ].upload.theta.params.items():  # theta_m is what its l steps reach, as in Algorithm 1
            torch.testing.assert_close(
                a, plain_rounds[0].upload.theta.params[k], rtol=0, atol=1e-12
            )
        for i in range(5):
            optima = stack(
                [Point({k: a[i] for k, a in r.upload.optimum.params.items()}) for r in rounds]
            )
            assert float(rounds[-1].upload.var[i]) == pytest.approx(spread(optima), rel=1e-9)
        assert float(loop.position.server.s0sq) == pytest.approx(
            5 * spread(rounds[-1].upload.optimum), rel=1e-9
        )
        assert spread(rounds[-1].upload.optimum) != pytest.approx(
            spread(rounds[-1].upload.theta), rel=1e-3
        )
        own = personal(loop)
        for i in range(5):
            wanted = torch.cat([a[i].flatten() for a in rounds[-1].upload.theta.params.values()])
            torch.testing.assert_close(own[i], wanted, rtol=0, atol=0)
        w = 1 / (loop.position.server.s0sq + rounds[-1].upload.var)
        _same(loop.position.server.theta, _mixed(rounds[-1].upload.theta, w.tolist()))
        assert _steps(loop)[0] == _steps(plain)[0] + 5 * 30


# What is written down


def _steps(loop):
    rows = loop.table.whole().to_pylist()
    return [row["value"] for row in rows if row["metric"] == "steps" and row["client"] == EVERYONE]


def test_notes_tell_how_clients_worked():
    loop = play("selffl", options={"l_max": 6, "l_base": 3}, rounds=4)
    rows = loop.table.whole().to_pylist()
    note = {
        (row["metric"], row["round"], row["client"]): row["value"]
        for row in rows
        if row["view"] == "" and row["client"] >= 0
    }
    assert {k[0] for k in note} >= {"sigma2", "steps_taken", "raw_steps", "r", "capped", "guard"}
    for t, total in enumerate(_steps(loop), 1):
        assert total == sum(note["steps_taken", t, i] for i in range(5))
    for i in range(5):
        assert note["guard", 1, i] == note["guard", 2, i] == HISTORY
        assert np.isnan(note["sigma2", 1, i])
        assert np.isnan(note["raw_steps", 2, i])
        assert note["guard", 3, i] != HISTORY
        assert 0 < note["r", 4, i] < 1
        assert note["capped", 4, i] == (note["steps_taken", 4, i] == 6)
    assert loop.server_notes()["sigma0"] == loop.position.server.s0sq


def test_a_never_active_client_uses_the_global_model():
    loop = play("selffl", rounds=2, participation=0.2, options={"warm": 1})
    store = loop.engine.states[0]
    idle = [i for i in loop.everyone if i not in store or store.gather([i]).t == 0]
    assert any(i in store for i in idle)  # one that was active in the warm start only
    theta = torch.cat([a.flatten() for a in loop.position.server.theta.params.values()])
    for i in idle:
        assert torch.equal(personal(loop)[i], theta)


# The paper's synthetic experiment on the real engine


@pytest.mark.parametrize("fl_weight", law.FL_WEIGHTS)
@pytest.mark.parametrize("case", [1, 2])
def test_engine_equals_the_simulation(case, fl_weight):
    with float64():
        gaussian = example()
        data = gaussian.federation(case, seed=0)
        world = gaussian.world(data, case)
        rounds = 5 if case == 1 else 2
        got = gaussian.engine(data, rounds, fl_weight=fl_weight, known_spread=world.s0sq)
        same = gaussian.selffl(fl_weight)(world, [np.ones_like(world.z)] * rounds, 1.0).personal
        np.testing.assert_allclose(got, same[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("fl_weight", "rounds"), [("paper", 5), ("exact", 2)])
def test_engine_reaches_the_optimum_of_far_clients(fl_weight, rounds):
    with float64():
        gaussian = example()
        data = gaussian.federation(2, seed=0)
        world = gaussian.world(data, 2)
        got = gaussian.engine(data, rounds, fl_weight=fl_weight, known_spread=1.0)
        aim = law.fl_optimum(world.z, 1.0, world.s2, fl_weight)[0]
        assert np.abs(got - aim).max() < 5e-3
        assert (
            np.abs(law.fl_optimum(world.z, 1.0, world.s2)[0] - world.z[0]).max() > 0.05
        )  # far from the local optimum


def test_one_round_of_rounded_steps_misses_by_what_the_formula_says():
    """From a first model at 0 all start at 0: the distance left is (1 - h)^l |z|."""
    with float64():
        gaussian = example()
        data = gaussian.federation(2, seed=3)
        world = gaussian.world(data, 2)
        got = gaussian.engine(data, 1, known_spread=1.0)
        h = gaussian.RATE / world.s2[0]
        rest = law.sum_of_others(law.weights(1.0, world.s2[0]))
        steps = np.rint(law.steps(law.share(world.s2[0], rest), h))
        np.testing.assert_allclose(
            np.abs(got - world.z[0]), (1 - h) ** steps * np.abs(world.z[0]), atol=1e-12
        )


@pytest.mark.parametrize("further", [0, 50])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("case", [1, 2])
def test_engine_equals_the_simulation_of_both_algorithms(case, known, further):
    """Algorithm 2 takes `further` steps; where s0^2 is unknown both estimate it."""
    with float64():
        gaussian = example()
        data = gaussian.federation(case, seed=1)
        world = gaussian.world(data, case)
        rounds = [np.ones_like(world.z)] * 3
        got = gaussian.engine(
            data,
            len(rounds),
            known_spread=world.s0sq if known else -1.0,
            spread="mean",
            augmented=further > 0,
            converge_steps=max(further, 1),
        )
        same = gaussian.selffl(known=known, further=further)(world, rounds, 1.0).personal
        np.testing.assert_allclose(got, same[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_known_variances_make_both_algorithms_the_same_and_an_unknown_spread_does_not(share):
    gaussian = example()
    rng = np.random.default_rng(0)
    world, rounds = gaussian.draw(1, 3, rng), gaussian.sample(3, 6, share, rng)

    def play_both(known):
        both = (gaussian.selffl(known=known, further=further) for further in (0, 300))
        return [method(world, rounds, share).personal for method in both]

    np.testing.assert_array_equal(*play_both(known=True))
    first, second = play_both(known=False)
    assert np.abs(first - second).max() > 1e-3


def test_the_spread_between_active_clients_is_their_empirical_variance():
    gaussian = example()
    rng = np.random.default_rng(0)
    models, (active,) = rng.normal(size=(4, 20)), gaussian.sample(4, 1, 0.2, rng)
    wanted = [law.spread(row[on][:, None]) for row, on in zip(models, active, strict=True)]
    np.testing.assert_allclose(gaussian.between(models, active)[:, 0], wanted)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pfedme", {"lam": 15.0, "inner": 5, "inner_lr": 0.01}),
        ("perfedavg", {"alpha": 0.1}),
        ("ditto", {"lam": 2.0}),
    ],
)
def test_the_simulated_baselines_are_the_librarys(name, options):
    """The library descends the mean loss, whose curvature is 1 for every client."""
    with float64():
        gaussian = example()
        gaussian.RATE = 0.01
        data = gaussian.federation(2, seed=0)
        world = gaussian.world(data, 2)._replace(s2=np.ones((1, data.clients)))
        loop = play(
            name,
            data,
            [Model(lambda: net("mean", (1,), 1), task="squared")],
            rounds=3,
            train=Train(batch_size=0, lr=0.01, local_steps=gaussian.LOCAL_STEPS),
            options=options,
            parts=("train",),
        )
        first = next(iter(options.values()))  # lam or alpha
        same = getattr(gaussian, name)(first)(world, [np.ones_like(world.z)] * 3, 1.0)
        got = [float(personal(loop)[i]) for i in range(data.clients)]
        np.testing.assert_allclose(got, same.personal[0], rtol=0, atol=1e-10)
        theta = loop.position.server.w.params["theta"]
        assert float(theta) == pytest.approx(float(same.theta[0]), abs=1e-10)


def test_pfedme_settles_at_the_proximal_points_of_the_mean():
    """theta_m = (z_m / s^2 + lam w) / (1 / s^2 + lam), w the mean of equally sized clients' z."""
    gaussian = example()
    gaussian.RATE, gaussian.LOCAL_STEPS, gaussian.INNER = 0.005, 1, 100
    s2, lam = 0.01, 2.0
    world = gaussian.draw(2, 3, np.random.default_rng(0))
    world = world._replace(s2=np.full_like(world.s2, s2), sizes=np.full_like(world.sizes, 10))
    got = gaussian.pfedme(lam)(world, [np.ones_like(world.z)] * 3000, 1.0)
    w = world.z.mean(1)
    np.testing.assert_allclose(got.theta, w, atol=1e-9)
    aim = (world.z / s2 + lam * w[:, None]) / (1 / s2 + lam)
    np.testing.assert_allclose(got.personal, aim, atol=1e-9)


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_perfedavg_without_adaptation_is_fedavg(share):
    gaussian = example()
    rng = np.random.default_rng(0)
    world, rounds = gaussian.draw(2, 3, rng), gaussian.sample(3, 5, share, rng)
    got = gaussian.perfedavg(0.0)(world, rounds, share)
    wanted = gaussian.fedavg(world, rounds, share)
    np.testing.assert_allclose(got.theta, wanted.theta, atol=1e-12)
    np.testing.assert_allclose(got.personal, wanted.personal, atol=1e-12)


def test_known_variances_need_no_history():
    gaussian = example()
    loop = play(
        selffl,
        gaussian.federation(1, seed=0),
        [Model(lambda: net("mean", (1,), 1), task="squared")],
        rounds=1,
        train=Train(batch_size=0, lr=1e-4),
        options={"known_variance": 0.1, "known_spread": 0.001},
        settings=SEQUENTIAL,
        parts=("train",),
    )
    states = loop.engine.states[0].everything()[1]
    assert (states.choice.guard == NONE).all()
    sizes = torch.tensor(loop.federation.sizes)
    torch.testing.assert_close(states.choice.h, (1e-4 * sizes / 0.1).float())  # h = eta N_m / 0.1
    torch.testing.assert_close(loop.position.server.var, 0.1 / sizes.float())


def test_example_prints_the_papers_comparison(capsys):
    example().main(["--repeats", "4", "--rounds", "3"])
    out = capsys.readouterr().out
    for option in ("Case 1", "Case 2", "FedAvg", "Ditto", "local", "Self-FL", "Bayes"):
        assert option in out


def test_the_results_files_hold_all_that_the_figures_name(tmp_path, monkeypatch):
    gaussian = example()
    monkeypatch.setattr(gaussian, "library_gap", lambda case, share: 0.0)  # it takes a minute
    gaussian.write(tmp_path, {case: gaussian.errors(case, 2, 2, seed=0) for case in (1, 2)}, 0)
    papers = read_papers()
    for figure in ("selffl-figure-4", "selffl-figure-5", "selffl-figure-6"):
        stored = json.loads((tmp_path / f"{figure}.json").read_text())["columns"]
        assert [c["column"] for c in stored] == [c.name for c in papers[figure].columns]
        for column, paper in zip(stored, papers[figure].columns, strict=True):
            named = {row.method for row in paper.rows} | {m for pair in paper.above for m in pair}
            assert paper.above or column["claims"]  # so that there is a verdict
            for name in named:
                (run,) = column["methods"][name]
                assert np.isfinite(run["figures"][paper.view])


def test_files_of_runs_that_grouped_nobody_are_read():
    """The option `cluster` of earlier versions was off in them."""
    began = change_options(
        Experiment(method="selffl"), {"options.cluster": False, "options.l_max": 7}
    )
    assert began.options == {"l_max": 7}
    with pytest.raises(BadInput, match="unknown option 'cluster'"):
        change_options(began, {"options.cluster": True})


# Refusals


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"units": "per_sampl"}, "units = 'per_sampl': give per_sample"),
        ({"steps_rule": "x"}, "formula"),
        ({"others": "all"}, "active or seen"),
        ({"level": "device"}, "client, group or variance"),
        ({"clusters": 0}, "clusters = 0"),
        ({"spread": "median"}, "sum or mean"),
        ({"fl_weight": "exakt"}, "fl_weight = 'exakt': give paper or exact"),
        ({"l_max": 0}, "l_max = 0"),
        ({"l_base": -1}, "l_base = -1"),
        ({"warm": -2}, "warm = -2"),
        ({"converge_steps": 0}, "converge_steps = 0"),
        ({"known_variance": -0.1}, "known_variance = -0.1"),
        ({"known_variance": 0.1, "warm": 3}, "warm = 3"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, option):
    with pytest.raises(BadInput, match=option) as caught:
        selffl(tiny_model(), TRAIN, **options)
    assert "\n" not in str(caught.value)
