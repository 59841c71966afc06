"""What a builder declares is what it takes: options, their ranges and choices, words of [train]."""

import inspect
import math
from functools import cache
from typing import Annotated, Literal, get_args, get_origin

import pytest
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.core.options import PositiveInt, Range, declared_options, describe_type
from coterie.experiment.config import Experiment, known_options_of, options_of
from coterie.methods.declare import extends, method, refused_of, unused_of, variant
from coterie.methods.fedavg import fedavg
from coterie.methods.registry import METHODS
from coterie.networks.registry import NETS
from helpers.federations import (
    MODELS,
    OPTIONS,
    TRAIN,
    assert_same,
    personal,
    play,
    tiny_images,
    tiny_model,
)

WORDS = {
    "batch_size": 3,
    "lr": 0.05,
    "local_epochs": 2,
    "local_steps": 3,
    "momentum": 0.5,
    "weight_decay": 0.1,
    "weighting": "equal",
    "optimizer": "adam",
    "nesterov": True,
    "clip_norm": 0.1,
    "keep_optimizer": True,
    "lr_schedule": "exponential:gamma=0.5",
    "server_optimizer": "adam",
    "server_lr": 0.5,
}
OF_IMAGES = {"augment": "flip"}
OF_RUNS = {"bound_steps"}  # tried in tests/running/test_bounded_steps.py
# What a word needs beside it to mean anything.
COMPANIONS = {
    "nesterov": {"momentum": 0.5},
    "keep_optimizer": {"momentum": 0.5},
    "server_lr": {"server_optimizer": "sgd"},
}
every_method = pytest.mark.parametrize("name", sorted(METHODS))


def build(name, train=TRAIN, **options):
    return METHODS[name](MODELS.get(name, tiny_model)(), train, **(OPTIONS.get(name, {}) | options))


@cache
def plain_models(name, train=TRAIN):
    return personal(play(name, train=train))


def moved(one, other):
    """Whether any client's own model is another one."""
    return any(not torch.equal(one[i], other[i]) for i in one)


def test_every_word_of_train_is_tried():
    assert {*WORDS, *OF_IMAGES, *OF_RUNS} == set(Train._fields)


@every_method
def test_every_method_trains_on_augmented_images(name):
    model = tiny_model(norm=name == "fedbn", image=True)
    plain, other = (
        personal(play(name, tiny_images(), [model], train=train))
        for train in (TRAIN, TRAIN._replace(**OF_IMAGES))
    )
    assert moved(plain, other)


def unused_by_default(builder):
    """The words of [train] that a method does not use as long as its options are as usual."""
    options = declared_options(builder)
    return {
        option
        for option, when in unused_of(builder).items()
        if when is None or options[when[0]][1] != when[1]
    }


@every_method
@pytest.mark.parametrize("option", WORDS)
def test_a_word_of_train_changes_the_models_or_is_refused(name, option):
    unused, refused = unused_by_default(METHODS[name]), refused_of(METHODS[name])
    beside = {k: v for k, v in COMPANIONS.get(option, {}).items() if k not in refused}
    train = TRAIN._replace(**beside, **{option: WORDS[option]})
    plain = plain_models(
        name, TRAIN._replace(**{k: v for k, v in beside.items() if k not in unused})
    )
    if option not in {*unused, *refused}:
        assert moved(plain, personal(play(name, train=train)))
        return
    value = "yes" if WORDS[option] is True else WORDS[option]
    with pytest.raises(
        BadInput, match=f"^{name} (does not use|uses|refuses) {option} = {value}"
    ) as caught:
        build(name, train)
    assert "\n" not in str(caught.value)
    if option in refused:
        return
    models = [MODELS.get(name, tiny_model)()]
    unchecked = inspect.unwrap(METHODS[name])
    assert_same(
        plain, personal(play(unchecked, models=models, train=train, options=OPTIONS.get(name))), 0
    )


@pytest.mark.parametrize(
    ("name", "option", "when"),
    [
        (name, option, when)
        for name in METHODS
        for option, when in unused_of(METHODS[name]).items()
        if when
    ],
)
def test_a_word_that_is_used_sometimes_changes_the_models_then(name, option, when):
    options = {when[0]: when[1]}
    train = TRAIN._replace(**{option: WORDS[option]})
    assert moved(
        personal(play(name, options=options)), personal(play(name, train=train, options=options))
    )


# Options


def numbers():
    """(method, option, type) of every option that is a number."""
    for name in METHODS:
        for option, (kind, _) in declared_options(METHODS[name]).items():
            plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
            if plain in (int, float):
                yield pytest.param(name, option, kind, id=f"{name}-{option}")


@pytest.mark.parametrize(("name", "option", "kind"), list(numbers()))
def test_every_number_has_finite_bounds_and_is_refused_outside(name, option, kind):
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(BadInput, match=f"^{name}.{option} = ") as caught:
            build(name, **{option: value})
        assert "\n" not in str(caught.value)
    limit = get_args(kind)[1]
    assert -1e12 <= limit.low <= limit.high <= 1e12
    for value in (10**24, -(10**24), limit.low - 1, limit.high + 1):
        with pytest.raises(BadInput, match=f"^{name}.{option} = .*: give a .*number"):
            build(name, **{option: value})


@every_method
def test_every_choice_is_a_choice(name):
    """A word is one of a few, except where it describes a network."""
    for option, (kind, default) in declared_options(METHODS[name]).items():
        if get_origin(kind) is Literal:
            with pytest.raises(BadInput, match=f"^{name}.{option} = 'nonsense': give .*{default}"):
                build(name, **{option: "nonsense"})
        elif kind is str:
            assert option in ("auxiliary", "own"), (name, option)


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match=r"^ditto has no option 'lamb'; did you mean 'lam'\?"):
        build("ditto", lamb=1)
    with pytest.raises(BadInput, match=r"^local has no option 'lam'"):
        build("local", lam=1)


def test_a_range_is_told_in_words():
    assert describe_type(PositiveInt) == "a whole number from 1 to 1,000,000"
    assert (
        describe_type(Annotated[float, Range(0, 1, low_open=True)]) == "a number above 0, up to 1"
    )
    assert (
        describe_type(Annotated[float, Range(0, 1, high_open=True)]) == "a number from 0 to below 1"
    )
    assert (
        describe_type(Annotated[float, Range(0, 1, True, True)]) == "a number above 0 and below 1"
    )
    assert (
        describe_type(tuple[Annotated[float, Range(0, 1)], ...])
        == "numbers separated by commas, each from 0 to 1"
    )


@every_method
def test_no_option_has_the_name_of_a_word_that_every_method_has(name):
    """So that a common word is never ambiguous, whatever the method and the network."""
    known = known_options_of(Experiment(method=name))
    common = {w for s in ("dataset", "train", "schedule", "engine", "keep") for w in known[s]}
    networks = {w for net in NETS for w in options_of("model", net)}
    assert not set(known["options"]) & (common | networks)


# Variants


def test_a_variant_is_its_base_with_options_fixed():
    half = variant(fedavg, "half", "FedAvg that goes half the way.", beta=0.5)
    assert declared_options(half) == {}
    assert (half.__doc__, half.__module__) == ("FedAvg that goes half the way.", fedavg.__module__)
    assert_same(personal(play(half)), personal(play("fedavg", options={"beta": 0.5})), 0)
    with pytest.raises(BadInput, match="half has no option 'beta'"):
        half(tiny_model(), TRAIN, beta=1.0)
    assert list(declared_options(METHODS["topk-pfl"])) == [
        o
        for o in declared_options(METHODS["ktpfl"])
        if o not in ("lr_c", "rho", "row_norm", "literal_eq7", "mix", "peers")
    ]


def test_a_builder_that_extends_another_has_its_options_too():
    @method()
    @extends(fedavg)
    def longer(model, train, more: PositiveInt = 1, **options):
        return fedavg(model, train._replace(local_epochs=train.local_epochs + more), **options)

    assert declared_options(longer) == {"more": (PositiveInt, 1), **declared_options(fedavg)}
    assert_same(
        personal(play(longer, options={"more": 1, "beta": 0.5})),
        personal(play("fedavg", train=TRAIN._replace(local_epochs=2), options={"beta": 0.5})),
        0,
    )
    with pytest.raises(BadInput, match=r"longer\.beta = -1"):
        longer(tiny_model(), TRAIN, beta=-1)
