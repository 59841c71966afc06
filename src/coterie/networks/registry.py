"""The registry of networks: every network of the compared papers as a plain torch module, by name.

A builder is `(input_shape, classes, **options) -> nn.Module`; its signature holds its options and
their defaults. Images are [channels, height, width], features [d], sequences [steps, features].
Outputs are logits, and the last dense layer is called `head` in every network. Initial values are
PyTorch's defaults unless a builder says otherwise, and come from torch's global generator alone,
which the caller forks and seeds.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, get_type_hints

from torch import nn

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.functions import find_function, is_function_name
from coterie.core.options import coerce, declared_options, split_spec
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
from coterie.networks.dense import dnn, logistic, mean, mlr
from coterie.networks.pretrained import hf
from coterie.networks.recurrent import lstm
from coterie.networks.residual import kt_resnet18
from coterie.networks.shuffle import kt_shufflenet
from coterie.networks.word_bag import bag

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Net(NamedTuple):
    """One registered network: how it is built, and what is special about it."""

    build: Callable[..., nn.Module]
    wants_table: bool = False  # its option `table` takes the word vectors of the data
    wants_words: bool = False  # its option `words` takes how many words texts have
    wants_images: bool = False  # it takes images as well as texts
    wants_base: bool = False  # its option `base` follows its name; it takes `task` and `digest`
    one_logit: bool = False  # it tells two classes apart by one output


NETS: dict[str, Net] = {
    "mlr": Net(mlr),
    "logistic": Net(logistic, one_logit=True),
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
    "hf": Net(hf, wants_words=True, wants_images=True, wants_base=True),
}


def parse_spec(spec: str) -> tuple[str, dict[str, object]]:
    """A network's name and options, written as in "dnn:hidden=20" or "a:b=1:c=2"."""
    head, _, rest = spec.strip().partition(":")
    second = rest.partition(":")[0]
    if head in NETS and NETS[head].wants_base and second and "=" not in second:  # hf:FOLDER:a=1
        _, given = split_spec(f"{head}{rest.removeprefix(second)}")
        return head, {"base": second} | {k: _parse_number(v) for k, v in given.items()}
    if head not in NETS and is_function_name(f"{head}:{second}"):  # one of the user's own
        _, given = split_spec(rest)
        return f"{head}:{second}", {key: _parse_number(value) for key, value in given.items()}
    name, given = split_spec(spec)
    return name, {key: _parse_number(value) for key, value in given.items()}


def add_own_network(name: str) -> None:
    """Make a network of a plugin known as module:name: a class or a function, which gets the
    input's shape and the number of classes if it asks for them by the names of this registry.
    """
    make = find_function(name, "model")
    parameters = inspect.signature(make).parameters
    given = [word for word in ("input_shape", "classes") if word in parameters]
    options = {k: p for k, p in parameters.items() if k not in given}
    for word, parameter in options.items():
        if parameter.default is parameter.empty and parameter.kind not in VARIADIC:
            raise BadInput(
                f"net '{name}' asks for '{word}', which has no default: give it one, or ask for "
                "input_shape and classes"
            )

    def build(input_shape: Shape, classes: int, **chosen: object) -> nn.Module:
        known = {"input_shape": input_shape, "classes": classes}
        made = make(**{word: known[word] for word in given}, **chosen)
        if not isinstance(made, nn.Module):
            raise BadInput(f"net '{name}' gives {format_value(made)}: give a torch.nn.Module")
        return made

    own = [p.replace(kind=p.KEYWORD_ONLY) for p in options.values() if p.default is not p.empty]
    first = list(inspect.signature(build).parameters.values())[:2]
    vars(build)["__signature__"] = inspect.Signature([*first, *own])
    hints = get_type_hints(make.__init__ if inspect.isclass(make) else make, include_extras=True)
    build.__annotations__ = {k: v for k, v in hints.items() if k in options}
    build.__module__, build.__doc__ = make.__module__, make.__doc__
    NETS[name] = Net(build)


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
        elif (
            _is_size(default) and not NETS[name].wants_base and not is_positive(value, like=default)
        ):
            kind = "number" if isinstance(default, float) else "whole number"
            raise BadInput(
                f"{option} = {format_value(value)} for net '{name}': give a positive {kind}, "
                f"such as {default}"
            )
        elif default is not None:
            coerce(
                declared_options(NETS[name].build)[option][0], value, f"{name}.{option}", default
            )


def _is_size(default: object) -> bool:
    """Whether an option is a size or a share, as all of coterie's own networks have."""
    return isinstance(default, int | float) and default > 0


def options_of(name: str) -> dict[str, object]:
    """The options of a network and their defaults."""
    parameters = inspect.signature(NETS[name].build).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def is_positive(value: object, like: object) -> bool:
    """Whether `value` is a finite positive number like `like`; an int also serves as a float."""
    kinds = (int, float) if isinstance(like, float) else (int,)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < math.inf
