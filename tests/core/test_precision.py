"""Training passes in bfloat16: the network computes in it, all that is kept stays in float32."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Batch
from coterie.core.model import Model
from coterie.engines.settings import ExecutionSettings
from coterie.experiment.build import models_of
from coterie.experiment.config import Experiment, change_options
from coterie.results.run import Run
from coterie.running.assembly import load_federation
from coterie.running.execute import execute
from helpers.federations import STACKED, assert_same, personal, play, tiny_model
from helpers.runs import FAST


class Told(nn.Module):
    """A dense layer, which tells the precision of what it gives."""

    def __init__(self, say: Callable[[torch.dtype], None]) -> None:
        super().__init__()
        self.layer, self.say = nn.Linear(6, 3), say

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        self.say(out.dtype)
        return out


def rows(count: int = 8, seed: int = 0) -> Batch:
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=drawn)
    y = torch.randint(0, 3, (count,), generator=drawn)
    return Batch(x, y, torch.ones(count), torch.arange(count), torch.tensor(0))


def test_only_training_passes_are_in_bfloat16():
    said: list[torch.dtype] = []
    model = Model(lambda: Told(lambda dtype: said.append(dtype))).in_precision(torch.bfloat16)
    point, batch = model.start(0), rows()
    said.clear()
    slope, loss = model.grad_and_loss(point, batch)
    assert said == [torch.bfloat16]
    assert {t.dtype for t in (*slope.params.values(), loss)} == {torch.float32}
    assert model.logits(point, batch).dtype == torch.float32
    assert said == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_agree_to_the_digits_of_bfloat16(norm):
    plain = tiny_model(norm=norm)
    point, batch = plain.start(0), rows()
    wanted, got = plain.grad(point, batch), plain.in_precision(torch.bfloat16).grad(point, batch)
    for name, slope in wanted.params.items():
        torch.testing.assert_close(got.params[name], slope, rtol=0.1, atol=0.02)
    apart = (wanted.params["0.weight"] - got.params["0.weight"]).abs().max()
    assert apart > 0  # else the closed form, or float32, was taken


def test_statistics_of_many_rows_keep_their_digits():
    """257 rows cannot be counted in bfloat16."""
    plain = tiny_model(norm=True)
    point, batch = plain.start(0), rows(257)
    fresh = [m.forward(point, batch)[1] for m in (plain, plain.in_precision(torch.bfloat16))]
    for name, statistic in fresh[0].items():
        assert fresh[1][name].dtype == statistic.dtype
        torch.testing.assert_close(fresh[1][name], statistic, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedfomo", "ditto", "pfedme", "fml"])
def test_states_and_models_stay_in_float32(name):
    model = tiny_model(norm=name == "fedbn").in_precision(torch.bfloat16)
    loop = play(name, models=[model])
    kept = [*pytree.tree_leaves(loop.position.server), *loop.engine.states[0].leaves]
    assert not {t.dtype for t in kept if isinstance(t, Tensor)} & {torch.bfloat16, torch.float16}
    assert all(torch.isfinite(w).all() for w in personal(loop).values())


@pytest.mark.parametrize(
    "settings",
    [ExecutionSettings("vectorized", 2, "no"), ExecutionSettings("vectorized", 16, "trace")],
)
def test_every_path_casts_alike(settings):
    model = tiny_model().in_precision(torch.bfloat16)
    one, other = (play("ditto", models=[model], settings=s) for s in (STACKED, settings))
    assert_same(personal(one), personal(other), 1e-2)


def accuracy(run: Run) -> float:
    return float(run.client_values().mean())


def test_training_in_bfloat16_reaches_nearly_the_accuracy_of_float32(tmp_path):
    settings = {
        "method": "fedavg",
        "num_clients": 5,
        "rounds": 20,
        "lr": 0.1,
        "local_epochs": 2,
    } | FAST
    plain = change_options(Experiment(), settings)
    runs = {
        precision: execute(
            change_options(plain, {"precision": precision}),
            tmp_path / precision,
            lambda report: None,
        )
        for precision in ("float32", "bfloat16")
    }
    assert accuracy(runs["float32"]) > 0.8
    assert accuracy(runs["bfloat16"]) == pytest.approx(accuracy(runs["float32"]), abs=0.03)
    models = [sorted((tmp_path / p / "models").glob("*.safetensors"))[0] for p in runs]
    assert models[0].read_bytes() != models[1].read_bytes()
    assert runs["bfloat16"].about["options"]["engine.precision"] == "bfloat16"


def test_a_precision_that_changes_nothing_is_refused():
    settings = change_options(Experiment(), {"dataset": "gaussian", "precision": "bfloat16"})
    with pytest.raises(BadInput, match="precision = bfloat16 changes nothing in mean"):
        models_of(settings, load_federation(settings))
