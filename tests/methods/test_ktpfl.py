"""KT-pFL and its variants: the knowledge matrix, the two exchanges, and what they find."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import rel_entr
from torch import nn

from coterie.core.errors import BadInput
from coterie.core.model import Model
from coterie.core.point import pick
from coterie.data.dataset import Public
from coterie.data.federation import Federation
from coterie.methods import knowledge
from coterie.methods.distillation import DistillationServer
from coterie.methods.knowledge import Knowledge, Part, project_to_simplex, weigh_similar, weigh_top
from coterie.methods.mixing import Mixing, scale_rows
from coterie.methods.registry import METHODS
from coterie.networks.registry import build_network
from helpers.federations import (
    OPTIONS,
    SEQUENTIAL,
    STACKED,
    TRAIN,
    assert_same,
    float64,
    personal,
    play,
    tiny,
    tiny_model,
    watched,
)

DRAW = OPTIONS["ktpfl"]["draw"]
WARM = {"T2_scale": True, "lr_c": 0.3, "rho": 0.1, "temperature": 2.0}


def predictions(clients=4, rows=7, classes=3, seed=0):
    z = np.random.default_rng(seed).normal(size=(clients, rows, classes))
    return torch.as_tensor(
        np.exp(z) / np.exp(z).sum(-1, keepdims=True), dtype=torch.get_default_dtype()
    )


def matrix(clients=4, seed=1):
    c = np.random.default_rng(seed).random((clients, clients)) + 0.1
    return torch.as_tensor(c / c.sum(1, keepdims=True), dtype=torch.get_default_dtype())


def prediction_gradient(c, s):
    return knowledge.prediction_gradient(Part(c), s, lam=1.0)


def model_gradient(c, w):
    return knowledge.model_gradient(Part(c), w)


def state(loop, i):
    return pick(loop.engine.states[0].gather([i]), 0)


# The matrix


def test_the_gradient_of_c_equals_finite_differences():
    with float64():
        s, c = predictions(), matrix()

        def objective(c, n):
            return rel_entr(np.einsum("m,mxy->xy", c, s.numpy()), s[n].numpy()).sum(-1).mean()

        g, step = prediction_gradient(c, s).numpy(), 1e-6
        for n in range(4):
            for m, e in enumerate(np.eye(4) * step):
                row = c[n].numpy()
                difference = (objective(row + e, n) - objective(row - e, n)) / (2 * step)
                assert g[n, m] == pytest.approx(difference, abs=1e-7)


def test_the_gradient_over_parameters_equals_finite_differences_on_the_simplex():
    with float64():
        c, w = matrix(), torch.as_tensor(np.random.default_rng(2).normal(size=(4, 9)))
        spread = (w - w.mean(0)).square().sum(1).mean()
        g, step = model_gradient(c, w), 1e-6
        for n in range(4):
            for m in range(1, 4):
                along = torch.zeros(4)
                along[m], along[0] = step, -step  # a direction that keeps the row's sum
                far, near = (
                    ((c[n] + t * along) @ w - w[n]).square().sum() / spread for t in (1, -1)
                )
                assert float(g[n, m] - g[n, 0]) == pytest.approx(
                    float((far - near) / (2 * step)), abs=1e-7
                )


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(-5, 5)),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_projection_is_the_nearest_point_of_the_simplex(rows, mass):
    v = torch.as_tensor(rows)
    c = project_to_simplex(v, torch.full((len(rows), 1), mass, dtype=torch.float64))
    assert (c >= 0).all()
    torch.testing.assert_close(c.sum(1), torch.full((len(rows),), mass, dtype=torch.float64))
    others = (
        torch.as_tensor(np.random.default_rng(0).dirichlet(np.ones(rows.shape[1]), size=50)) * mass
    )
    for n in range(
        len(rows)
    ):  # the angle between v - c and any other point's direction is never acute
        assert ((others - c[n]) @ (v[n] - c[n]) <= 1e-9).all()
        corners = mass * torch.eye(rows.shape[1], dtype=torch.float64)
        assert ((corners - c[n]) @ (v[n] - c[n]) <= 1e-9).all()


def test_equal_predictions_leave_c_uniform_and_unequal_ones_move_it():
    method = METHODS["ktpfl"](tiny_model(), TRAIN)
    c = torch.full((4, 4), 0.25)
    even = Knowledge(Mixing(c), torch.full((4,), 0.25))
    same = predictions()[:1].expand(4, -1, -1)
    server = DistillationServer(torch.tensor(0), even, torch.arange(4), same)
    learn = method.round[1].receive
    torch.testing.assert_close(learn(server, None, None).mix.c.weights, c, atol=1e-6, rtol=0)
    moved = learn(server._replace(said=predictions()), None, None).mix.c.weights
    assert (moved - c).abs().max() > 1e-4
    assert (moved.diagonal() > 0.25).all()  # nobody predicts like oneself


def test_c_takes_one_projected_step_for_each_public_batch():
    with float64():
        c, s, rate, rho, lam = matrix(), predictions(rows=7), 0.2, 0.3, 0.5
        method = METHODS["ktpfl"](
            tiny_model(), TRAIN, draw=7, public_batch_size=3, lr_c=rate, rho=rho, lam=lam
        )
        wanted = c.clone()
        for part in (s[:, :3], s[:, 3:6], s[:, 6:]):
            p = torch.einsum("nm,mxy->nxy", wanted, part)
            g = torch.einsum("mxy,nxy->nm", part, p.log() - part.log()) / part.shape[1]
            wanted = project_to_simplex(
                wanted - rate * (lam * g + 2 * rho * (wanted - 1 / 4)), torch.ones(4, 1)
            )
        even = Knowledge(Mixing(c), torch.full((4,), 0.25))
        server = DistillationServer(torch.tensor(0), even, torch.arange(4), s)
        learned = method.round[1].receive(server, None, None).mix.c.weights
        torch.testing.assert_close(learned, wanted)


def test_literal_equation_7_sums_over_samples_and_weighs_by_data():
    with float64():
        c, s, data = matrix(), predictions(rows=5), torch.tensor([0.1, 0.2, 0.3, 0.4])
        method = METHODS["ktpfl"](tiny_model(), TRAIN, draw=5, lr_c=0.02, rho=0.0, literal_eq7=True)
        server = DistillationServer(torch.tensor(0), Knowledge(Mixing(c), data), torch.arange(4), s)
        wanted = project_to_simplex(
            c - 0.02 * 5 * data[:, None] * prediction_gradient(c, s), torch.ones(4, 1)
        )
        learned = method.round[1].receive(server, None, None).mix.c.weights
        torch.testing.assert_close(learned, wanted)


def test_softmax5_replaces_the_projection():
    with float64():
        c, s = matrix(), predictions()
        steps = [lambda part: prediction_gradient(part.values, s)]
        after = knowledge.descend_knowledge(
            Mixing(c), torch.arange(4), steps, 0.1, 0.6, "softmax5"
        ).weights
        stepped = c - 0.1 * (prediction_gradient(c, s) + 1.2 * (c - 0.25))
        torch.testing.assert_close(after, torch.softmax(5 * stepped, 1))
        assert_same(
            personal(play("ktpfl", options={"row_norm": "softmax5"})),
            personal(play("ktpfl", options={"row_norm": "softmax5"}, settings=SEQUENTIAL)),
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ktpfl", {"lr_c": 0.3}),
        ("ktpfl-h", {"lr_c": 0.3}),
        ("sim-pfl", {}),
        ("topk-pfl", {"k": 2}),
    ],
)
def test_sampling_moves_active_entries_only_and_keeps_each_rows_mass(name, options):
    with float64():
        loop = play(name, until=0, rounds=6, participation=3, options=options)
        for number in range(6):
            before = loop.server_notes()["c"].clone()
            _, picked, _ = loop._select_clients(loop.program[0], number)
            loop.go(until=number + 1)
            after, on = loop.server_notes()["c"], torch.tensor(sorted(picked))
            off = torch.ones(5, 5, dtype=torch.bool)
            off[on[:, None], on] = False
            assert torch.equal(after[off], before[off])
            torch.testing.assert_close(after[on][:, on].sum(1), before[on][:, on].sum(1))
            assert (after >= 0).all()
            assert not torch.equal(after, before)


def test_a_row_without_mass_on_those_who_spoke_is_taught_by_all_of_them():
    torch.testing.assert_close(scale_rows(torch.tensor([0.0, 0.0])), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(scale_rows(torch.tensor([0.1, 0.3])), torch.tensor([0.25, 0.75]))


def test_similar_gives_the_least_similar_nothing_and_oneself_the_most():
    rows = weigh_similar(predictions())
    torch.testing.assert_close(rows.sum(1), torch.ones(4))
    assert (rows.amin(1) == 0).all()
    assert (rows.argmax(1) == torch.arange(4)).all()
    torch.testing.assert_close(weigh_similar(torch.full((3, 2, 2), 0.5)), torch.full((3, 3), 1 / 3))


def test_topk_counts_the_k_nearest_alike_and_oneself_among_them():
    s = predictions(clients=6)
    rows = weigh_top(s, 3)
    assert ((rows > 0).sum(1) == 3).all()
    assert (rows.diagonal() == rows.max()).all()
    flat = s.flatten(1)
    cosines = torch.nn.functional.cosine_similarity(flat[:, None], flat[None], dim=-1)
    for n in range(6):
        taken = rows[n] > 0
        assert cosines[n][taken].min() >= cosines[n][~taken].max()


# The exchanges


@pytest.mark.parametrize(
    "schedule", [{}, {"participation": 3, "rounds": 4}, {"dropout_clients": 0.3, "rounds": 3}]
)
def test_without_c_steps_it_is_fedmd(schedule):
    with float64():
        options = {"T2_scale": True, "temperature": 3.0}
        still = play("ktpfl", options=options | {"lr_c": 0.0}, **schedule)
        assert_same(personal(still), personal(play("fedmd", options=options, **schedule)))
        moving = personal(play("ktpfl", options=options | {"lr_c": 0.3}, **schedule))
        assert max(float((moving[i] - w).abs().max()) for i, w in personal(still).items()) > 1e-4


def test_topk_of_everyone_is_fedmd():
    with float64():
        assert_same(personal(play("topk-pfl", options={"k": 5})), personal(play("fedmd")))


def test_without_distillation_it_is_local():
    with float64():
        assert_same(personal(play("ktpfl", options={"lam": 0.0})), personal(play("local")))


@pytest.mark.parametrize("path", [STACKED, SEQUENTIAL])
@pytest.mark.parametrize("public_batch_size", [8, 20, 256])
def test_padded_public_rows_never_leak(path, public_batch_size):
    """Uploads, targets and distances are those computed at once on the rows drawn."""
    with float64():
        model = tiny_model(norm=True, dropout=0.3)
        options = {"public_batch_size": public_batch_size, "lr_c": 0.1, "temperature": 10.0}
        loop, trips = watched("ktpfl", models=[model], settings=path, options=options)
        (_, first, _), (sent, _, _) = trips
        assert first.upload.shape == (5, DRAW, 3)
        for i in range(5):
            own = state(loop, i)
            direct = torch.softmax(model.logits(own.before, first.public) / 10, -1)
            torch.testing.assert_close(first.upload[i], direct, atol=1e-12, rtol=0)
            torch.testing.assert_close(sent[i], first.upload.mean(0), atol=1e-12, rtol=0)
            after = torch.softmax(model.logits(own.w, first.public) / 10, -1)
            kls = [rel_entr(sent[i].numpy(), p.numpy()).sum(-1).mean() for p in (direct, after)]
            np.testing.assert_allclose(own.gaps.numpy(), kls, atol=1e-12)


def test_distillation_is_a_plain_step_on_the_kl():
    with float64():
        model = tiny_model()
        options = {
            "public_batch_size": DRAW,
            "temperature": 2.0,
            "lam": 0.5,
            "T2_scale": True,
            "distil_lr": 0.3,
            "distil_epochs": 1,
        }
        loop, trips = watched("ktpfl", models=[model], options=options)
        x = trips[0][1].public.x
        for i in range(5):
            module = model.module(state(loop, i).before)
            log_p = torch.log_softmax(module(x) / 2.0, -1)
            (
                0.5 * 4 * nn.functional.kl_div(log_p, trips[1][0][i], reduction="batchmean")
            ).backward()
            for name, p in module.named_parameters():
                torch.testing.assert_close(
                    state(loop, i).w.params[name], (p - 0.3 * p.grad).detach()
                )


def test_targets_follow_c():
    with float64():
        loop = play("ktpfl", rounds=3, options=WARM, until=2)
        c = loop.server_notes()["c"].clone()
        trips, original = [], loop.engine.exchange

        def exchange(trip):
            trips.append(({i: trip.send(i) for i in trip.clients}, original(trip)))
            return trips[-1][1]

        loop.engine.exchange = exchange
        loop.go()
        said = trips[0][1][0].upload
        for i in range(5):
            torch.testing.assert_close(trips[1][0][i], torch.einsum("m,mxy->xy", c[i], said))


@pytest.mark.parametrize("name", ["ktpfl", "sim-pfl", "topk-pfl"])
def test_three_architectures_agree_on_both_paths(name):
    with float64():
        models = [tiny_model(5), tiny_model(7, norm=True), tiny_model(3)]
        stacked = play(name, tiny(7), models, rounds=3)
        alone = play(name, tiny(7), models, rounds=3, settings=SEQUENTIAL)
        assert_same(personal(stacked), personal(alone))
        torch.testing.assert_close(stacked.server_notes()["c"], alone.server_notes()["c"])


@pytest.mark.parametrize("name", ["ktpfl", "ktpfl-h"])
def test_opposed_groups_are_found(name):
    options = WARM if name == "ktpfl" else {"mu": 0.5, "lr_c": 0.1, "rho": 0.1}
    c = play(name, tiny(6), rounds=15, options=options).server_notes()["c"]
    group = torch.arange(6) % 2
    alike = group[:, None] == group
    peers = alike & ~torch.eye(6, dtype=torch.bool)
    assert c[peers].mean() > 3 * c[~alike].mean()
    torch.testing.assert_close(c.sum(1), torch.ones(6))


def test_the_kl_on_public_rows_falls():
    loop = play("ktpfl", rounds=5, options=WARM)
    notes = loop.engine.client_notes(loop.everyone)
    for i in loop.everyone:
        assert 0 < notes["kl_after"][i] < 0.9 * notes["kl_before"][i]


def test_the_model_before_distillation_is_a_view():
    measured = play("ktpfl", options=WARM).evaluate()
    before, after = (
        measured[view, "train", "loss"] for view in ("before_distillation", "personal")
    )
    assert np.isfinite(before).all()
    assert (before != after).all()


def test_the_model_before_mixing_is_the_one_that_was_trained():
    """With mu = 1 everybody ends at a mixture, and with c = 1/N at the mean of these models."""
    with float64():
        loop = play("ktpfl-h", rounds=1, options={"mu": 1.0, "lr_c": 0.0})
        before = personal(loop, "before_mixing")
        mixture = torch.stack(list(before.values())).mean(0)
        assert_same(personal(loop), dict.fromkeys(before, mixture))
        assert_same(before, personal(play("local", rounds=1)))


def test_a_round_in_which_nothing_reaches_the_server_has_no_second_exchange():
    """Everybody trains, the one to be averaged is lost: the others keep what they learned alone."""
    with float64():
        for name in ("ktpfl", "ktpfl-h", "fedmd"):
            loop, alone = play(name, until=0, rounds=1), play("local", until=0, rounds=1)
            for each in (loop, alone):
                each._select_clients = lambda stage, number: ([0, 1, 2, 3, 4], {0}, {1, 2, 3, 4})
                each.go()
            assert_same(personal(loop), personal(alone))


def test_clients_that_are_not_averaged_are_taught_too():
    with float64():
        for name in ("ktpfl", "ktpfl-h", "fedmd"):
            here = personal(play(name, rounds=3, participation=2, trains="all"))
            assert_same(
                here,
                personal(play(name, rounds=3, participation=2, trains="all", settings=SEQUENTIAL)),
            )
            alone = personal(play("local", rounds=3, participation=2, trains="all"))
            assert all(float((here[i] - alone[i]).abs().max()) > 1e-6 for i in here)


def test_only_predictions_travel():
    loop, trips = watched("ktpfl", models=[tiny_model(), tiny_model(50)])
    up, down = sum(t.up for _, _, t in trips), sum(t.down for _, _, t in trips)
    assert up == 5 * DRAW * 3 * 4
    assert down == 5 * (DRAW * 3 * 4 + 8)  # the targets, and the seed of the common start
    # kept for newcomers: what was said last, never a model
    assert loop.position.server.said.shape == (5, DRAW, 3)


# Over parameters


def test_full_mixing_with_uniform_c_is_averaging():
    with float64():
        equal = TRAIN._replace(weighting="equal")
        for model in (tiny_model(), tiny_model(norm=True)):
            mixed = play("ktpfl-h", models=[model], options={"mu": 1.0, "lr_c": 0.0})
            assert_same(personal(mixed), personal(play("fedavg", models=[model], train=equal)))


def test_no_mixing_is_local():
    with float64():
        assert_same(personal(play("ktpfl-h", options={"mu": 0.0})), personal(play("local")))


def test_clients_step_toward_their_own_mixture():
    with float64():
        loop, trips = watched("ktpfl-h", options={"mu": 0.3, "lr_c": 0.2})
        (_, first, _), (sent, _, _) = trips
        for i in range(5):
            w = pick(first.upload, i)
            for name, p in state(loop, i).w.params.items():
                bar = first.upload.params[name].mean(0)
                torch.testing.assert_close(sent[i].params[name], bar)
                torch.testing.assert_close(p, w.params[name] - 0.3 * (w.params[name] - bar))
        c = loop.server_notes()["c"]
        w = torch.cat([a.flatten(1) for a in first.upload.params.values()], 1)
        wanted = project_to_simplex(
            0.2 - 0.2 * model_gradient(torch.full((5, 5), 0.2), w), torch.ones(5, 1)
        )
        torch.testing.assert_close(c, wanted)


def test_one_model_up_and_one_down():
    _, trips = watched("ktpfl-h")
    size = tiny_model().size * 4
    assert sum(t.up for _, _, t in trips) == 5 * size
    assert sum(t.down for _, _, t in trips) == 5 * (size + 8)


def test_the_scale_of_the_weights_does_not_matter_for_c():
    w = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model_gradient(matrix(), w), model_gradient(matrix(), 100 * w))
    assert torch.equal(model_gradient(matrix(), w[:1].expand(4, -1) * 0), torch.zeros(4, 4))


# The paper's networks, options, and the engine


def test_the_papers_four_networks_learn_from_each_other():
    rng = np.random.default_rng(0)
    shape, classes, clients, rows = (3, 28, 28), 4, 4, 12
    parts = [np.arange(i * rows, (i + 1) * rows) for i in range(clients)]
    x = torch.as_tensor(rng.normal(size=(clients * rows, *shape)), dtype=torch.float32)
    common = torch.as_tensor(rng.normal(size=(10, *shape)), dtype=torch.float32)
    federation = Federation(
        name="noise",
        x=x,
        y=torch.as_tensor(rng.integers(0, classes, len(x))),
        classes=classes,
        train=[p[:8] for p in parts],
        validation=[p[8:10] for p in parts],
        test=[p[10:] for p in parts],
        groups=np.zeros(clients, dtype=int),
        names=[str(i) for i in range(clients)],
        public=Public("noise", common, None, "0"),
    )
    narrow = [
        ("kt-lenet", {}),
        ("kt-alexnet", {"width": 0.1}),
        ("kt-resnet18", {"width": 0.125}),
        ("kt-shufflenet", {"width": 0.25}),
    ]
    models = [
        Model(lambda n=n, o=o: build_network(n, shape, classes, **o), name=n) for n, o in narrow
    ]
    options = {"draw": 10, "public_batch_size": 4, "lr_c": 0.5, "temperature": 1.0}
    loop = play("ktpfl", federation, models, rounds=1, settings=SEQUENTIAL, options=options)
    assert all(torch.isfinite(w).all() for w in personal(loop).values())
    c = loop.server_notes()["c"]
    torch.testing.assert_close(c.sum(1), torch.ones(4))
    assert (c - 0.25).abs().max() > 1e-3
    assert len({w.numel() for w in personal(loop).values()}) == 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ktpfl", {"draw": 0}),
        ("ktpfl", {"public_batch_size": 0}),
        ("ktpfl", {"distil_epochs": 0}),
        ("ktpfl", {"distil_lr": -1.0}),
        ("ktpfl", {"temperature": 0.0}),
        ("ktpfl", {"lam": -0.1}),
        ("ktpfl", {"rho": -0.1}),
        ("ktpfl", {"lr_c": -0.1}),
        ("ktpfl", {"row_norm": "projct"}),
        ("ktpfl", {"mix": "top"}),
        ("topk-pfl", {"k": 0}),
        ("ktpfl-h", {"mu": 1.5}),
        ("ktpfl-h", {"row_norm": "none"}),
    ],
)
def test_bad_options_are_refused_by_name(name, options):
    with pytest.raises(BadInput, match=next(iter(options))):
        METHODS[name](tiny_model(), TRAIN, **options)


def test_a_model_without_classes_is_refused():
    model = Model(lambda: nn.Linear(6, 1), task="squared", name="line")
    with pytest.raises(BadInput, match="line"):
        METHODS["ktpfl"](model, TRAIN)
