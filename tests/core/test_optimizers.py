"""Optimizers take the steps of torch.optim, as written and in machine code."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.model import Descent, begin, descend
from coterie.core.optimizers import OPTIMIZERS, optimizer_of
from coterie.core.point import Point, Vector
from coterie.engines.local.native import compiler
from helpers.steps import taken

STEPS = 25
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
RATES = {"sgd": 0.1}
CASES = [
    ({}, {}),
    ({"weight_decay": 0.02}, {"weight_decay": 0.02}),
    ({"clip_norm": 0.3}, {}),
    ({"weight_decay": 0.02, "clip_norm": 0.3}, {"weight_decay": 0.02}),
]
OWN = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("adam", {}),
    ("adam", {"beta1": 0.7, "beta2": 0.95, "eps": 1e-3}),
    ("adam", {"beta1": 0.0}),
    ("adamw", {}),
    ("adamw", {"beta1": 0.7, "beta2": 0.95, "eps": 1e-3}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.8, "eps": 1e-3}),
    ("rmsprop", {"momentum": 0.9}),
    ("adagrad", {}),
    ("adagrad", {"eps": 1e-3}),
]
THEIRS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request):
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def start():
    g = torch.Generator().manual_seed(3)
    return {
        k: torch.randn(*shape, generator=g, dtype=torch.float64).to(torch.get_default_dtype())
        for k, shape in {"a": (4, 3), "b": (3,)}.items()
    }


def slopes(a, b):
    """A gradient that is no gradient's multiple of another step's."""
    return {"a": (a - 0.3).tanh() + 0.1 * b, "b": b * b.abs() - 0.2 + a.mean(0)}


def train_of(name, own, shared):
    settings = {k: v for k, v in own.items() if k in Train._fields}
    spec = ":".join([name, *(f"{k}={v}" for k, v in own.items() if k not in settings)])
    return Train(optimizer=spec, lr=RATES.get(name, 0.01), **settings, **shared)


def torch_steps(name, own, shared, given):
    """What torch.optim makes of the parameters, step by step."""
    own = dict(own)
    if "beta1" in own or "beta2" in own:
        own["betas"] = own.pop("beta1", 0.9), own.pop("beta2", 0.999)
    # torch's AdamW decays by 0.01 unless it is told otherwise
    theirs = {"weight_decay": 0.0, "lr": RATES.get(name, 0.01)} | given
    parameters = {k: torch.nn.Parameter(v) for k, v in start().items()}
    optimizer = THEIRS[name](parameters.values(), **own, **theirs)
    for _ in range(STEPS):
        for k, g in slopes(**{k: p.detach() for k, p in parameters.items()}).items():
            parameters[k].grad = g.clone()
        if "clip_norm" in shared:
            clip_grad_norm_(parameters.values(), shared["clip_norm"])
        optimizer.step()
        yield {k: p.detach().clone() for k, p in parameters.items()}


every_optimizer = pytest.mark.parametrize(("name", "own"), OWN, ids=lambda v: str(v))
every_case = pytest.mark.parametrize(("shared", "given"), CASES, ids=lambda v: str(v))


def test_every_optimizer_is_held_to_torch():
    assert set(OPTIMIZERS) == {name for name, _ in OWN} == set(THEIRS)


@every_optimizer
@every_case
def test_an_optimizer_is_torch_s_step_by_step(name, own, shared, given, dtype):
    train, most = train_of(name, own, shared), TOLERANCE[dtype]
    c = begin(Point(start()), train)
    for right in torch_steps(name, own, shared, given):
        c = descend(c, Vector(slopes(**c.w.params)), train)
        torch.testing.assert_close(c.w.params, right, rtol=most, atol=most)


@pytest.mark.skipif(not compiler.find_compiler(), reason="no C compiler here")
@every_optimizer
def test_an_optimizer_is_torch_s_in_machine_code(name, own, dtype):
    """With weight decay and clipping too: they are steps before and after it."""
    shared, given = CASES[-1]
    train, most = train_of(name, own, shared), TOLERANCE[dtype]
    leaves, spec = pytree.tree_flatten(begin(Point(start()), train))

    def step(*leaves):
        c: Descent = pytree.tree_unflatten(list(leaves), spec)
        return pytree.tree_leaves(descend(c, Vector(slopes(**c.w.params)), train))

    for done, right in enumerate(torch_steps(name, own, shared, given), start=1):
        if done in (1, 2, STEPS):
            found = pytree.tree_unflatten(taken(step, *leaves, steps=done), spec)
            torch.testing.assert_close(found.w.params, right, rtol=most, atol=most)


def test_a_step_takes_over_the_buffers_of_its_gradient():
    for name in OPTIMIZERS:
        train = Train(optimizer=name, clip_norm=1.0, weight_decay=0.1)
        w = Point({"a": torch.ones(2)}, {"seen": torch.tensor(0)})
        c = descend(begin(w, train), Vector({"a": torch.ones(2)}, {"seen": torch.tensor(1)}), train)
        assert int(c.w.buffers["seen"]) == 1
        assert not any(v.fresh for v in c.u)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"optimizer": "adma"}, "optimizer = 'adma': unknown; did you mean 'adam'?"),
        ({"optimizer": "adam:beta3=1"}, "optimizer = 'adam:beta3=1': no option 'beta3' of adam"),
        ({"optimizer": "sgd:eps=1"}, "no option 'eps' of sgd, which takes none"),
        ({"optimizer": "adam:beta1=1"}, "optimizer, beta1 of adam, = 1: give a number from 0 to"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum = 0.9, but adam has no use for it"),
        ({"nesterov": True}, "nesterov = yes changes how sgd uses its momentum"),
        ({"nesterov": True, "optimizer": "rmsprop", "momentum": 0.9}, "optimizer = rmsprop"),
    ],
)
def test_what_an_optimizer_has_no_use_for_is_refused(settings, line):
    with pytest.raises(BadInput) as told:
        optimizer_of(Train(**settings))
    assert line in str(told.value)
