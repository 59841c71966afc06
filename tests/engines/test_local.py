"""The local engine against closed forms and against plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch, Train, stages_of
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.base import EngineSetup, ExchangeRequest, Moment
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.native.compiler import find_compiler
from coterie.engines.local.stacks import split_chunks
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.loop import Loop
from helpers.federations import (
    SEQUENTIAL,
    STACKED,
    TRAIN,
    assert_same,
    float64,
    given,
    personal,
    play,
    tiny,
    tiny_model,
)


def quadratic(centres: list[float], sizes: list[int]) -> tuple[Federation, Model]:
    """Client i's loss is 1/2 (w - c_i)^2: rows all equal to c_i."""
    x = torch.tensor([c for c, n in zip(centres, sizes, strict=True) for _ in range(n + 1)])[
        :, None
    ]
    ends = np.cumsum([n + 1 for n in sizes])
    rows = [np.arange(e - n - 1, e) for e, n in zip(ends, sizes, strict=True)]
    empty = np.zeros(0, dtype=np.int64)
    federation = Federation(
        name="quadratic",
        x=x,
        y=x[:, 0],
        classes=0,
        train=[r[:-1] for r in rows],
        validation=[empty] * len(rows),
        test=[r[-1:] for r in rows],
        groups=np.zeros(len(rows), dtype=int),
        names=[str(i) for i in range(len(rows))],
    )

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.theta.expand(len(x), 1)

    return federation, Model(Mean, task="squared")


WHOLE = Train(batch_size=100, lr=0.2, local_steps=3)


def test_fedavg_fixed_point_is_the_weighted_mean_of_the_optima():
    with float64():
        federation, model = quadratic([1.0, 4.0, -2.0], [1, 2, 5])
        w = personal(play("fedavg", federation, [model], rounds=80, train=WHOLE))
        assert w[0].item() == pytest.approx((1 + 8 - 10) / 8, abs=1e-12)
        equal = personal(
            play("fedavg", federation, [model], rounds=80, train=WHOLE._replace(weighting="equal"))
        )
        assert equal[0].item() == pytest.approx(1.0, abs=1e-12)


def test_ditto_closed_form():
    """v* = (c_k + lam w) / (1 + lam)."""
    with float64():
        federation, model = quadratic([1.0, 4.0, -2.0], [1, 2, 5])
        v = personal(
            play("ditto", federation, [model], rounds=200, train=WHOLE, options={"lam": 0.7})
        )
        w = (1 + 8 - 10) / 8
        for i, c in enumerate([1.0, 4.0, -2.0]):
            assert v[i].item() == pytest.approx((c + 0.7 * w) / 1.7, abs=1e-9)


def test_pfedme_moreau_step():
    """theta = (c_i + lam w_i) / (1 + lam) when the inner problem is solved, and w_i moves by -rate
    lam (w_i - theta).
    """
    with float64():
        federation, model = quadratic([3.0], [2])
        train = Train(batch_size=100, lr=0.5, local_steps=1)
        options = {"lam": 2.0, "inner": 20, "inner_lr": 0.3}
        loop = play("pfedme", federation, [model], rounds=1, train=train, options=options)
        theta = 3.0 / 3.0
        assert personal(loop)[0].item() == pytest.approx(theta, abs=1e-9)
        assert loop.position.server.w.params["theta"].item() == pytest.approx(
            0.5 * 2.0 * theta, abs=1e-9
        )
        late = play("pfedme", *_two(), rounds=60, train=train, options=options)
        assert late.position.server.w.params["theta"].item() == pytest.approx(2.0, abs=1e-6)
        assert personal(late)[0].item() == pytest.approx((1 + 2 * 2.0) / 3, abs=1e-6)


def _two():
    federation, model = quadratic([1.0, 3.0], [4, 4])
    return federation, [model]


def test_fedprox_without_its_term_is_fedavg_and_with_it_stays_nearer():
    with float64():
        assert_same(personal(play("fedprox", options={"mu": 0.0})), personal(play("fedavg")))
        federation, model = quadratic([1.0], [3])
        one = Train(batch_size=100, lr=0.2, local_steps=2)
        w = personal(play("fedprox", federation, [model], rounds=1, train=one, options={"mu": 1.0}))
        first = 0.2 * 1.0
        assert w[0].item() == pytest.approx(first - 0.2 * ((first - 1.0) + 1.0 * first), abs=1e-12)


def test_fine_tuning_leaves_the_global_model_alone():
    with float64():
        tuned, plain = play("finetune"), play("fedavg")
        for name, value in tuned.position.server.w.params.items():
            torch.testing.assert_close(value, plain.position.server.w.params[name], rtol=0, atol=0)
        assert not torch.equal(personal(tuned)[0], personal(plain)[0])


def test_local_is_ditto_without_its_pull():
    with float64():
        assert_same(personal(play("ditto", options={"lam": 0.0})), personal(play("local")))


def plain_sgd(loop: Loop, model: Model, point, client: int, train: Train, rounds: int) -> nn.Module:
    """An ordinary PyTorch loop over the very batches that the engine drew, real rows only."""
    module = model.module(point).train()
    data = loop.federation
    for number in range(rounds):
        optimizer = torch.optim.SGD(
            module.parameters(),
            lr=train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
        )
        at, each = loop.engine.feed.batches(
            train.plan(), "train-0", Moment("train", number), [client]
        )
        for s in range(each[0]):
            batch, _ = at(s)
            real = batch.mask[0] > 0
            optimizer.zero_grad()
            F.cross_entropy(module(batch.x[0][real]), batch.y[0][real]).backward()
            optimizer.step()
        assert int(batch.mask[0].sum()) in (
            len(data.train[client]) % train.batch_size,
            train.batch_size,
        )
    return module


@pytest.mark.parametrize("settings", [STACKED, SEQUENTIAL], ids=["vectorized", "sequential"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_training_equals_plain_pytorch(settings, norm):
    """Momentum, weight decay, short last batches and BatchNorm's running statistics included."""
    with float64():
        model, train = (
            tiny_model(norm=norm),
            Train(batch_size=4, lr=0.05, local_epochs=2, momentum=0.9, weight_decay=0.01),
        )
        federation = tiny(4)
        # a last batch of one row has no variance: BatchNorm in PyTorch refuses it, so no client has
        # one here
        federation = federation._replace(
            train=[r[: len(r) - 1] if len(r) % 4 == 1 else r for r in federation.train]
        )
        loop = play("local", federation, [model], rounds=2, train=train, settings=settings)
        start = model.start(int(loop.position.server.seed))
        for i, vector in personal(loop).items():
            module = plain_sgd(loop, model, start, i, train, 2)
            state = module.state_dict()
            wanted = torch.cat(
                [
                    state[k].double().flatten()
                    for k in [*model.shapes, *(k for k in state if k not in model.shapes)]
                ]
            )
            torch.testing.assert_close(vector, wanted, rtol=1e-9, atol=1e-9)


def test_dropout_is_the_same_alone_and_stacked_and_drops_the_right_share():
    with float64():
        models = [tiny_model(dropout=0.5)]
        assert_same(
            personal(play("fedavg", models=models)),
            personal(play("fedavg", models=models, settings=SEQUENTIAL)),
        )
    layer = Model(lambda: nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.3)))
    point = layer.init(np.random.default_rng(0))
    batch = Batch(
        torch.zeros(20_000, 1),
        torch.zeros(20_000),
        torch.ones(20_000),
        torch.arange(20_000),
        torch.tensor(5),
    )
    kept = [
        (layer.forward(point, batch._replace(key=torch.tensor(k)))[0] != 0).double() for k in (1, 2)
    ]
    assert kept[0].mean().item() == pytest.approx(0.7, abs=0.02)
    assert (
        (kept[0] - 0.7) * (kept[1] - 0.7)
    ).mean().abs().item() < 0.01  # another key, another draw


def test_uneven_steps_freeze_finished_clients():
    """A client with one step does not move while others take more, not even by a proximal term."""
    with float64():
        federation = tiny()
        for name in ("fedprox", "ditto", "pfedme"):
            stacked = personal(play(name, federation, rounds=1))
            alone = personal(play(name, federation, rounds=1, settings=SEQUENTIAL))
            assert_same(stacked, alone)


def test_everybody_trains_but_only_the_sampled_are_averaged():
    with float64():
        loop = play("ditto", rounds=1, participation=2, trains="all")
        assert sorted(loop.engine.states[0].slots) == [0, 1, 2, 3, 4]
        few = play("fedavg", rounds=1, participation=2)
        many = play("fedavg", rounds=1, participation=2, trains="all")
        assert_same(personal(few), personal(many))


def test_bytes_are_what_travelled():
    loop = play("fedavg", rounds=1, participation=3)
    size = 4 * tiny_model().size
    rows = {r["metric"]: r["value"] for r in loop.table.whole().to_pylist() if r["client"] == -1}
    assert rows["bytes_down"] == 3 * size
    assert rows["bytes_broadcast"] == size
    assert rows["bytes_up"] == 3 * size


def tiny_cnn() -> Model:
    def make() -> nn.Module:
        kernels = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2)
        return nn.Sequential(*kernels, nn.Flatten(), nn.Linear(3, 3))

    return Model(make, name="tiny-cnn")


def images_of(*sizes: int) -> Federation:
    rng = torch.Generator().manual_seed(0)
    return given(
        [
            (torch.randn(n, 1, 4, 4, generator=rng), torch.randint(3, (n,), generator=rng))
            for n in sizes
        ]
    )


@pytest.mark.parametrize(
    ("federation", "model"),
    [
        (tiny, tiny_model),
        (lambda: images_of(3, 1, 5), tiny_cnn),  # stacked
        (lambda: images_of(200, 1, 40), tiny_cnn),  # one after another, in blocks
    ],
)
@pytest.mark.parametrize("method", ["ditto", "fedavg"])
def test_evaluation_equals_scoring_each_client_alone(federation, model, method):
    loop = play(method, federation(), [model()])
    measured = loop.evaluate()
    for _, chunk, views in loop.engine.points(loop.everyone, loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            point = type(views["personal"])({n: t[k] for n, t in views["personal"].params.items()})
            module = loop.engine.models[0].module(point)
            rows = loop.federation.test[i]
            said, y = module(loop.federation.x[rows]), loop.federation.y[rows]
            right = (said.argmax(-1) == y).double().mean().item()
            assert measured["personal", "test", "accuracy"][i] == pytest.approx(right)
            loss = F.cross_entropy(said, y).item()
            assert measured["personal", "test", "loss"][i] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("name", ["ditto", "fedala", "feddf"])
def test_the_choice_by_timing_changes_no_result(name):
    """Passes without any step, before or after those that are timed, included."""
    with float64():
        assert_same(personal(play(name, settings=ExecutionSettings())), personal(play(name)))


def test_idle_clients_cost_no_state():
    loop = play("ditto", rounds=1, participation=1.0 / 5)
    assert len(loop.engine.states[0].slots) == 1


def test_chunks_are_balanced():
    assert [len(c) for c in split_chunks(list(range(10)), 4)] == [3, 3, 4]
    assert list(split_chunks([], 4)) == []


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x):
        return self.dense(x) - self.dense(x).mean(0)


class OwnDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x):
        return F.dropout(self.dense(x), 0.5, self.training)


class OwnBackward(nn.Module):
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x):
        return self.Twice.apply(self.dense(x))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (OwnBackward, r"its layer [\w.]*OwnBackward has an autograd\.Function that torch\.func"),
        (Mixer, "mixes the rows of a batch"),
        (OwnDropout, "random numbers of its own"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.AlphaDropout()), "'1' is a AlphaDropout"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "LazyLinear, whose size is not known"),
        (lambda: nn.Sequential(nn.Embedding(6, 3, max_norm=1.0)), "Embedding with max_norm"),
        (lambda: nn.Sequential(nn.Embedding(6, 3, sparse=True)), "Embedding with sparse=True"),
        (lambda: nn.utils.spectral_norm(nn.Linear(6, 3)), "parametrizations.spectral_norm"),
    ],
)
def test_networks_that_would_be_silently_wrong_are_refused(make, line):
    with pytest.raises(BadInput, match=line):
        Model(make).check((6,))


def test_a_network_with_batchnorm_and_dropout_is_accepted():
    tiny_model(norm=True, dropout=0.2).check((6,))


def test_building_a_model_does_not_touch_the_global_generator():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    tiny_model(norm=True).init(np.random.default_rng(0))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_method_cannot_reach_test_data():
    def spy(model, train):
        base = METHODS["fedavg"](model, train)
        trip = base.round[0]
        return base._replace(
            round=(trip._replace(passes=(trip.passes[0]._replace(plan=train.plan(part="test")),)),)
        )

    with pytest.raises(BadInput, match="out of a method's reach"):
        play(spy)


def test_a_state_that_changes_its_form_is_named():
    def broken(model, train):
        base = METHODS["ditto"](model, train)
        trip = base.round[0]
        return base._replace(round=(trip._replace(finish=lambda c, v, w: ((c.v, c.v), c.local)),))

    with pytest.raises(TypeError, match="structure"):
        play(broken)


def test_double_momentum_is_not_shared_between_rounds():
    """A fresh optimizer every round: two rounds of one step differ from one round of two steps only
    through momentum.
    """
    with float64():
        federation, model = quadratic([1.0], [3])
        steps = Train(batch_size=100, lr=0.1, local_steps=1, momentum=0.9)
        w = personal(play("local", federation, [model], rounds=2, train=steps))
        assert w[0].item() == pytest.approx(1 - 0.9**2, abs=1e-12)


def test_engine_copies_nothing_of_the_data():
    federation = tiny()
    models = [tiny_model()]
    programs = [stages_of(METHODS["fedavg"](models[0], TRAIN))]
    engine = LocalEngine(EngineSetup(federation, models, programs, np.zeros(5, dtype=int)))
    assert engine.feed.x.data_ptr() == federation.x.data_ptr()
    assert copy.copy(engine.feed.parts["train"].largest) == 17
    assert Loop(engine, federation, Schedule(rounds=1), 0).done == 0


@pytest.mark.parametrize(
    ("name", "options", "each"),
    [
        ("fedavg", {}, 1),
        ("ditto", {}, 2),
        ("pfedme", {"inner": 3}, 3),
    ],
)
def test_gradients_are_counted_on_every_path(name, options, each):
    found = []
    compiled = [STACKED._replace(compile="yes")] if find_compiler() else []
    for settings in (STACKED, SEQUENTIAL, *compiled):
        loop = play(name, rounds=2, settings=settings, options=options)
        rows = loop.table.whole().to_pylist()
        found.append(
            [
                (row["metric"], row["value"])
                for row in rows
                if row["metric"] in ("steps", "gradients")
            ]
        )
    assert all(other == found[0] for other in found)
    steps, gradients = (
        [v for metric, v in found[0] if metric == which] for which in ("steps", "gradients")
    )
    assert gradients == [each * s for s in steps]


def test_every_student_of_persfls_grid_counts():
    rows = play("persfl", rounds=1).table.whole().to_pylist()
    taken = {
        (row["stage"], row["metric"]): row["value"]
        for row in rows
        if row["metric"] in ("steps", "gradients")
    }
    train = sum(-(-(5 + 3 * i) // 4) for i in range(5))
    assert taken["train", "gradients"] == train
    assert (
        taken["distil", "gradients"] % (3 * train) == 0
    )  # three epochs, as many students as the grid has points
    assert taken["distil", "gradients"] > taken["distil", "steps"]


@pytest.mark.parametrize("name", ["fedamp", "ditto"])  # the state is the upload, and is not
def test_what_the_server_does_with_an_upload_reaches_no_state(name):
    train = TRAIN._replace(local_steps=3)  # as many for all: uploads stay in the order of the work
    loop = play(name, rounds=2, settings=STACKED._replace(width=100), train=train)
    everyone = set(loop.everyone)
    trip = ExchangeRequest(
        number=0,
        when=loop.when(),
        clients=loop.everyone,
        send=loop.payload(),
        answered=everyone,
        averaged=everyone,
    )
    replies = loop.engine.exchange(trip).replies
    before = [leaf.clone() for leaf in pytree.tree_leaves(loop.engine.dump())[5:]]
    for leaf in pytree.tree_leaves(replies.upload):
        leaf.fill_(7)
    after = pytree.tree_leaves(loop.engine.dump())[5:]
    assert before
    assert all(map(torch.equal, before, after))
