"""The registry of networks: every network of the compared papers as a plain torch module, by name.

A builder is `(input_shape, classes, **options) -> nn.Module`; its signature holds its options and
their defaults. Images are [channels, height, width], features [d], sequences [steps, features].
Outputs are logits, and the last dense layer is called `head` in every network. Initial values are
PyTorch's defaults unless a builder says otherwise, and come from torch's global generator alone,
which the caller forks and seeds.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import nn

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.options import coerce, declared_options
from coterie.networks.blocks import Shape, format_shape
from coterie.networks.convolution import (
    cifarnet,
    cnncifar,
    kt_alexnet,
    kt_lenet,
    lenet5,
    mcmahan,
    smallcnn,
)
from coterie.networks.dense import dnn, mean, mlr
from coterie.networks.recurrent import lstm
from coterie.networks.residual import kt_resnet18
from coterie.networks.shuffle import kt_shufflenet
from coterie.networks.word_bag import bag


class Net(NamedTuple):
    """One registered network: how it is built, and what is special about it."""

    build: Callable[..., nn.Module]
    wants_table: bool = False  # its option `table` takes the word vectors of the data
    wants_words: bool = False  # its option `words` takes how many words texts have
    one_logit: bool = False  # it tells two classes apart by one output


NETS: dict[str, Net] = {
    "mlr": Net(mlr),
    "dnn": Net(dnn),
    "cifarnet": Net(cifarnet),
    "cnncifar": Net(cnncifar),
    "lenet5": Net(lenet5),
    "mcmahan": Net(mcmahan),
    "smallcnn": Net(smallcnn),
    "kt-lenet": Net(kt_lenet),
    "kt-alexnet": Net(kt_alexnet),
    "kt-resnet18": Net(kt_resnet18),
    "kt-shufflenet": Net(kt_shufflenet),
    "lstm": Net(lstm, wants_table=True, one_logit=True),
    "mean": Net(mean),
    "bag": Net(bag, wants_words=True),
}


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """A network's name and options, written as in "dnn:hidden=20" or "a:b=1:c=2"."""
    name, *pairs = (piece.strip() for piece in re.split(r"[:,]", spec))
    found = (pair.partition("=") for pair in pairs if pair)
    return name, {key.strip(): _parse_number(value.strip()) for key, _, value in found}


def _parse_number(text: str) -> object:
    """The number that the text spells, else the text itself, which the network refuses by name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def build_network(name: str, input_shape: Shape, classes: int, **chosen: object) -> nn.Module:
    """The named network for this input and number of classes; what it cannot take is refused."""
    if name not in NETS:
        raise BadInput(f"unknown net '{name}'{suggest_name(name, NETS)}")
    if not input_shape or min(input_shape) < 1 or classes < 1:
        what = f"input {format_shape(input_shape)} and classes = {classes}"
        raise BadInput(
            f"{what} for net '{name}': every side and the number of classes must be at least 1"
        )
    _check_options(name, chosen)
    return NETS[name].build(tuple(input_shape), classes, **chosen)


def _check_options(name: str, chosen: Mapping[str, object]) -> None:
    """Refuse an option that the network does not have, or a value that it cannot take."""
    defaults = options_of(name)
    for option, value in chosen.items():
        if option not in defaults:
            way_out = suggest_name(option, defaults) if defaults else ", which takes none"
            raise BadInput(f"unknown option '{option}' of net '{name}'{way_out}")
        default = defaults[option]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise BadInput(f"{option} = {value!r} for net '{name}': give yes or no")
        elif default is not None and not is_positive(value, like=default):
            kind = "number" if isinstance(default, float) else "whole number"
            raise BadInput(
                f"{option} = {format_value(value)} for net '{name}': give a positive {kind}, "
                f"such as {default}"
            )
        elif default is not None:
            coerce(
                declared_options(NETS[name].build)[option][0], value, f"{name}.{option}", default
            )


def options_of(name: str) -> dict[str, object]:
    """The options of a network and their defaults."""
    parameters = inspect.signature(NETS[name].build).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def is_positive(value: object, like: object) -> bool:
    """Whether `value` is a finite positive number like `like`; an int also serves as a float."""
    kinds = (int, float) if isinstance(like, float) else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < math.inf
