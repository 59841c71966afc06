"""PFML: its local round against numpy, its limits, its fixed point, its readings."""

import numpy as np
import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.point import pick
from coterie.core.rng import stream
from coterie.methods.fml import build_private_model
from coterie.methods.pfml import pfml
from coterie.networks.registry import build_network
from helpers.federations import assert_same, float64, personal, play, tiny, tiny_model

WHOLE = Train(batch_size=100, lr=0.05, local_steps=4)  # every step sees all rows of a client


def shared(name="mlr"):
    return Model(lambda: build_network(name, (6,), 3), name=name, input_shape=(6,))


def flat(point):
    return torch.cat([t.flatten() for t in point.params.values()])


# An independent PFML: numpy, one client after another, gradients by hand.


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def outputs(p, x):
    """Logits of a linear map (W, b), or of a network with one hidden layer (W, b, V, c); weights
    are [out, in].
    """
    return x @ p[0].T + p[1] if len(p) == 2 else np.maximum(x @ p[0].T + p[1], 0) @ p[2].T + p[3]


def slope(p, x, y, peer, kl_weight):
    """Gradient of the mean of CE + kl_weight KL(peer || softmax)."""
    q = softmax(outputs(p, x))
    dz = (q - np.eye(3)[y] + kl_weight * (q - peer)) / len(x)
    if len(p) == 2:
        return [dz.T @ x, dz.sum(0)]
    hidden = np.maximum(x @ p[0].T + p[1], 0)
    dh = (dz @ p[2]) * (hidden > 0)
    return [dh.T @ x, dh.sum(0), dz.T @ hidden, dz.sum(0)]


def move(p, *terms):
    """p minus the sum of scaled gradients."""
    return [a - sum(rate * g[k] for rate, g in terms) for k, a in enumerate(p)]


def gap(p, anchor):
    return [a - b for a, b in zip(p, anchor, strict=True)]


def local_round(w_t, m_prev, m, x, y, lam, inner, eta_p, kl_weight, anchor, train):
    w = w_t
    for _ in range(train.local_steps):
        theta, what = m, w
        if anchor == "step":
            m_prev, w_t = m, w
        for _ in range(inner):
            p_theta, p_what = softmax(outputs(theta, x)), softmax(outputs(what, x))
            of_theta, of_what = (
                slope(theta, x, y, p_what, kl_weight),
                slope(what, x, y, p_theta, kl_weight),
            )
            theta = move(
                theta,
                (eta_p, of_theta),
                (eta_p * lam, gap(theta, m_prev)),
                (eta_p * train.weight_decay, theta),
            )
            what = move(
                what,
                (eta_p, of_what),
                (eta_p * lam, gap(what, w_t)),
                (eta_p * train.weight_decay, what),
            )
        p_m, p_w = softmax(outputs(m, x)), softmax(outputs(w, x))
        of_m, of_w = slope(m, x, y, p_w, kl_weight), slope(w, x, y, p_m, kl_weight)
        eta, decay = train.lr, train.lr * train.weight_decay
        m = move(m, (eta, of_m), (eta * lam, gap(m, theta)), (decay, m))
        w = move(w, (eta, of_w), (eta * lam, gap(w, what)), (decay, w))
    return w, m


def in_numpy(
    federation, w, own, rounds, lam, inner, inner_lr, beta, kl, kl_weight, aux_init, anchor, train
):
    sizes = np.array([len(rows) for rows in federation.train])
    for _ in range(rounds):
        locals_ = []
        for i, rows in enumerate(federation.train):
            x, y = federation.x[rows].numpy(), federation.y[rows].numpy()
            m_prev = w if aux_init == "reset" else own[i]
            m = own[i] if aux_init == "persist" else w
            weight = kl_weight / 3 if kl == "elementwise" else kl_weight
            w_i, own[i] = local_round(
                w, m_prev, m, x, y, lam, inner, inner_lr, weight, anchor, train
            )
            locals_.append(w_i)
        average = [
            sum(n * p[k] for n, p in zip(sizes / sizes.sum(), locals_, strict=True))
            for k in range(len(w))
        ]
        w = [(1 - beta) * a + beta * b for a, b in zip(w, average, strict=True)]
    return w, own


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kl": "elementwise", "kl_weight": 2.5, "inner": 1},
        {"aux_init": "start", "inner_lr": 0.02},
        {"auxiliary": "dnn:hidden=4", "beta": 0.7},
        {"aux_init": "reset"},
        {"anchor": "step", "kl": "elementwise"},
    ],
    ids=str,
)
def test_three_rounds_equal_an_independent_numpy_run(options):
    given = {
        "lam": 6.0,
        "inner": 3,
        "inner_lr": 0.03,
        "beta": 1.5,
        "kl": "batchmean",
        "kl_weight": 1.0,
        "aux_init": "persist",
        "anchor": "round",
    }
    train = WHOLE._replace(weight_decay=0.01)
    with float64():
        federation, model = tiny(3), shared()
        loop = play(pfml, federation, [model], rounds=3, train=train, options=given | options)
        w0 = play(
            pfml, federation, [model], until=0, train=train, options=given | options
        ).position.server.w
        w = [t.numpy() for t in w0.params.values()]
        auxiliary = options.get("auxiliary", "")
        net = build_private_model(model, auxiliary)
        own = [
            [t.numpy() for t in net.init(stream(0, "join", i)).params.values()] if auxiliary else w
            for i in range(federation.clients)
        ]
        settings = {k: v for k, v in (given | options).items() if k != "auxiliary"}
        w, own = in_numpy(federation, w, own, rounds=3, train=train, **settings)
        wanted = {
            i: torch.cat([torch.as_tensor(a).flatten() for a in p]) for i, p in enumerate(own)
        }
        assert_same(personal(loop), wanted)
        torch.testing.assert_close(
            flat(loop.position.server.w),
            torch.cat([torch.as_tensor(a).flatten() for a in w]),
            rtol=0,
            atol=1e-9,
        )


@pytest.mark.parametrize(
    "train",
    [Train(batch_size=4), Train(batch_size=4, momentum=0.9, weight_decay=0.01, lr=0.05)],
    ids=["plain", "momentum"],
)
@pytest.mark.parametrize(
    "schedule", [{}, {"participation": 0.6, "trains": "all"}], ids=["everyone", "sampled"]
)
def test_without_prox_and_mutual_learning_w_is_fedavg_and_m_is_local(train, schedule):
    with float64():
        both = play(
            "pfml",
            rounds=3,
            train=train,
            options={"lam": 0.0, "kl_weight": 0.0, "beta": 1.0},
            **schedule,
        )
        average = play("fedavg", rounds=3, train=train, **schedule)
        assert_same(personal(both), personal(play("local", rounds=3, train=train, **schedule)))
        torch.testing.assert_close(
            flat(both.position.server.w), flat(average.position.server.w), rtol=0, atol=1e-9
        )


def test_batchnorm_and_dropout_ride_along_in_the_limit():
    with float64():
        models = [tiny_model(norm=True, dropout=0.3)]
        both = play("pfml", models=models, options={"lam": 0.0, "kl_weight": 0.0})
        assert_same(personal(both), personal(play("local", models=models)))
        average = play("fedavg", models=models).position.server.w
        for mine, wanted in zip(
            both.position.server.w.buffers.values(), average.buffers.values(), strict=True
        ):
            torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("lam", [0.5, 4.0, 20.0])
def test_fixed_point_on_quadratics(lam):
    """On |m - c|^2 / 2: theta = t + q^K (m - t) with t = (c + lam m_prev) / (1 + lam) and q = 1 -
    eta_p (1 + lam), and m rests where m - c + lam (m - theta) = 0.
    """
    with float64():
        federation = tiny(1)
        targets = federation.x + 3  # the model is one vector that starts at 0
        net = Model(lambda: build_network("mean", (6,), 1), "squared", "mean")
        train = Train(batch_size=100, lr=1 / (1 + lam), local_steps=80)
        options = {"lam": lam, "inner": 3, "inner_lr": 0.02, "kl_weight": 0.0}
        loop = play(
            pfml,
            federation._replace(y=targets, classes=0),
            [net],
            rounds=1,
            train=train,
            options=options,
        )
        c = targets[federation.train[0]].mean(0)
        t = c / (1 + lam)
        s = lam * (1 - (1 - 0.02 * (1 + lam)) ** 3)
        torch.testing.assert_close(personal(loop)[0], (c + s * t) / (1 + s), rtol=0, atol=1e-9)


def distances(anchor):
    """How far m goes in a round, by lam."""
    train = Train(batch_size=100, lr=0.1, local_steps=50)
    moved = []
    for lam in (0.0, 5.0, 15.0):
        options = {"lam": lam, "inner_lr": 0.05, "anchor": anchor}
        before, after = (
            personal(play("pfml", tiny(2), rounds=1, until=n, train=train, options=options))
            for n in (0, 1)
        )
        moved.append(sum(float((after[i] - before[i]).norm()) for i in after))
    return moved


def test_m_stays_nearer_to_its_past_as_lam_grows():
    """The sign of the proximal term: the one printed in the paper's (8) drives m away."""
    moved = distances("round")
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.7 * moved[0]


def test_held_to_each_step_m_goes_faster_as_lam_grows():
    moved = distances("step")
    assert moved == sorted(moved)
    assert moved[-1] > 1.2 * moved[0]


def test_reset_makes_both_models_the_same_for_ever():
    """One client of five is averaged, so that the server holds its w_i: it is its m_i too, but not
    where m_i persists.
    """

    def apart(**options):
        loop = play("pfml", rounds=3, participation=1 / 5, trains="all", options=options)
        return min(
            float((m - flat(loop.position.server.w)).norm()) for m in personal(loop).values()
        )

    with float64():
        assert apart(aux_init="reset") < 1e-12
        assert apart(aux_init="persist") > 1e-2
        strong = play(
            "pfml", rounds=3, options={"aux_init": "reset", "kl_weight": 5.0}
        )  # equal models teach each other nothing
        assert_same(
            personal(strong), personal(play("pfml", rounds=3, options={"aux_init": "reset"}))
        )


def test_mutual_learning_draws_the_models_together():
    def apart(kl_weight):
        loop = play(
            "pfml", rounds=6, options={"kl_weight": kl_weight}, train=Train(batch_size=4, lr=0.05)
        )
        total = 0.0
        for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
            for k, i in enumerate(chunk):
                x = loop.federation.x[torch.as_tensor(loop.federation.train[i])]
                with torch.no_grad():
                    p, q = (
                        loop.engine.models[0].module(pick(views[v], k))(x).softmax(-1)
                        for v in ("personal", "global")
                    )
                total += float((p - q).abs().mean())
        return total

    assert apart(3.0) < 0.9 * apart(0.0)


def test_beta_extrapolates_the_mean():
    with float64():
        w0, w1, w2 = (
            flat(play("pfml", rounds=1, until=n, options={"beta": beta}).position.server.w)
            for n, beta in ((0, 1.0), (1, 1.0), (1, 2.0))
        )
        torch.testing.assert_close(w2 - w0, 2 * (w1 - w0))


def test_another_network_on_the_client_runs_and_learns():
    models = [shared("mlr")]
    options = {"auxiliary": "dnn:hidden=8"}
    losses = [
        play("pfml", models=models, rounds=12, until=n, options=options).evaluate() for n in (0, 12)
    ]
    for view in ("personal", "global"):
        assert np.mean(losses[1][view, "train", "loss"]) < 0.7 * np.mean(
            losses[0][view, "train", "loss"]
        )
    loop = play("pfml", models=models, options=options)
    assert {len(w) for w in personal(loop).values()} == {6 * 8 + 8 + 8 * 3 + 3}
    assert len(flat(loop.position.server.w)) == 6 * 3 + 3
    start = personal(play("pfml", models=models, until=0, options=options))
    assert not torch.equal(start[0], start[1])  # random, each client its own


def test_another_network_is_measured_as_itself():
    models = [shared("mlr")]
    loop = play("pfml", models=models, options={"auxiliary": "dnn:hidden=8"})
    net = loop.engine.model_of(0, "personal")
    measured = loop.evaluate()["personal", "test", "loss"]
    for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            rows = torch.as_tensor(loop.federation.test[i])
            logits = net.module(pick(views["personal"], k))(loop.federation.x[rows])
            wanted = torch.nn.functional.cross_entropy(logits, loop.federation.y[rows]).detach()
            assert measured[i] == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"kl": "sum"}, "kl = 'sum': give batchmean or elementwise"),
        ({"aux_init": "persits"}, "give persist, start or reset"),
        ({"inner": 0}, "inner = 0"),
        ({"lam": -1.0}, "lam = -1"),
        ({"lam": 20.0, "inner_lr": 0.5}, "lower lam to 0.4"),
        ({"lam": 250.0}, "diverge"),
        ({"auxiliary": "dnm"}, "did you mean 'dnn'"),
        ({"auxiliary": "dnn:hiden=3"}, "did you mean 'hidden'"),
        ({"auxiliary": "dnn:hidden=x"}, "hidden = 'x'"),
        ({"auxiliary": "dnn", "aux_init": "start"}, "use aux_init = persist"),
        ({"anchor": "step", "aux_init": "reset"}, "use aux_init = start"),
    ],
    ids=str,
)
def test_bad_options_are_refused_in_one_line(options, line):
    with pytest.raises(BadInput, match=line) as caught:
        pfml(shared(), Train(lr=0.01), **options)
    assert "\n" not in str(caught.value)


def test_a_model_without_input_shape_or_classes_has_no_other_network():
    with pytest.raises(BadInput, match="input_shape"):
        pfml(tiny_model(), Train(lr=0.01), auxiliary="dnn")
    with pytest.raises(BadInput, match="no classes"):
        pfml(Model(lambda: build_network("mean", (6,), 1), "squared", "mean"), Train(lr=0.01))


def test_rates_are_refused_from_where_the_proximal_steps_diverge():
    """With inner = 1 the outer step takes back rate lam inner_lr lam of the distance: more than
    twice it diverges.
    """
    pfml(shared(), Train(lr=0.1), lam=19.9, inner=1, inner_lr=0.05)
    with pytest.raises(BadInput, match="diverge"):
        pfml(shared(), Train(lr=0.1), lam=20.1, inner=1, inner_lr=0.05)
    pfml(shared(), Train(lr=0.1), lam=20.1, inner=1, inner_lr=0.05, anchor="step")
