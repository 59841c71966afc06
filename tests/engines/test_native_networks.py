"""Every method on three kinds of networks, as machine code and as written.

`COTERIE_TABLE=docs/reliability.md pytest -n 0 tests/engines/test_native_networks.py` writes the
largest differences into that page.
"""

import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from coterie.core.model import Model
from coterie.engines.local.native import compiler
from coterie.engines.settings import ExecutionSettings
from coterie.methods.registry import METHODS
from coterie.networks.registry import build_network
from helpers.federations import assert_same, float64, personal, play, tiny

COMPILED = ExecutionSettings("vectorized", 16, "yes")
SHAPES = {"DNN": (6,), "CNN": (1, 4, 4), "LSTM": (3, 2)}  # of a row
LARGEST = 1e-9  # of a parameter, in double precision after two rounds
pytestmark = pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")


class Normed(nn.Module):
    """A network whose outputs are normalized over the batch, for a method that needs such."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net, self.norm, self.head = net, nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.net(x)).relu())


def build(kind: str, outputs: int) -> nn.Module:
    if kind == "CNN":
        flat = nn.Linear(3 * 2 * 2, outputs)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), flat
        )
    options = {"hidden": 4, "layers": 1} if kind == "LSTM" else {"hidden": 5}
    return build_network(kind.lower(), SHAPES[kind], outputs, **options)


def model_of(kind: str, name: str) -> Model:
    def make() -> nn.Module:
        return Normed(build(kind, 4)) if name == "fedbn" else build(kind, 3)

    return Model(make, name=f"tiny-{kind}", input_shape=SHAPES[kind])


def federation_of(kind: str):
    """The tiny federation with rows of another shape: features are mixed by a fixed matrix."""
    found, shape = tiny(), SHAPES[kind]
    width = int(torch.tensor(shape).prod())
    mix = torch.linspace(-1, 1, 6 * width).reshape(6, width).sin()
    public = found.public._replace(x=(found.public.x @ mix).reshape(-1, *shape))
    return found._replace(x=(found.x @ mix).reshape(-1, *shape), public=public)


@pytest.fixture(scope="module")
def differences():
    """{(method, kind of network): largest difference}, written into a page where one is named."""
    found: dict[tuple[str, str], float] = {}
    yield found
    if page := os.environ.get("COTERIE_TABLE"):
        _write_table(Path(page), found)


def _write_table(page: Path, found: dict[tuple[str, str], float]) -> None:
    rows = [
        f"| {name} | " + " | ".join(f"{found[name, kind]:.0e}" for kind in SHAPES) + " |"
        for name in sorted(METHODS)
        if all((name, kind) in found for kind in SHAPES)
    ]
    head = (
        "Machine code beside torch's own operations "
        f"(`tests/engines/test_native_networks.py`, {time.strftime('%Y-%m-%d')}): the largest "
        "difference of a\nparameter of any client's model after two rounds in double precision.\n\n"
        f"| method | {' | '.join(SHAPES)} |\n|---|{'---|' * len(SHAPES)}\n"
    )
    begin, end = "<!-- native -->", "<!-- end of native -->"
    before, rest = page.read_text().split(begin)
    text = head + "\n".join(rows) + "\n"
    page.write_text(f"{before}{begin}\n{text}{end}{rest.split(end)[1]}")


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_machine_code_is_what_torch_computes_on_every_network(name, kind, differences):
    with float64():
        models, federation = [model_of(kind, name)], federation_of(kind)
        plain = personal(play(name, federation, models))
        native = play(name, federation, models, settings=COMPILED)
        assert not any(one.why for one in native.engine._steppers.values())
        found = personal(native)
    differences[name, kind] = max(float((plain[i] - found[i]).abs().max()) for i in plain)
    assert differences[name, kind] <= LARGEST


@pytest.mark.parametrize("method", ["fedavg", "pfml"])
def test_one_logit_for_two_classes_has_machine_code(method):
    """PFML pads it to two."""
    with float64():
        federation = tiny(clients=3)
        federation = federation._replace(y=federation.y % 2, classes=2)
        model = Model(lambda: build_network("logistic", (6,), 2), task="binary", input_shape=(6,))
        found = play(method, federation, [model], settings=COMPILED)
        wanted = play(method, federation, [model])
        assert_same(personal(found), personal(wanted))
