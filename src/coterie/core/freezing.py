"""Parts of a network by name: which parameters are meant, and those that do not train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn

from coterie.core.errors import BadInput

MAX_LAYERS_LISTED = 12  # layers that a refusal lists
Build = Callable[[], nn.Module]


def patterns_of(text: str) -> list[str]:
    """Patterns from a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def matches_pattern(name: str, pattern: str) -> bool:
    """Whether a pattern means a parameter: a layer by its name with all that is in it, or a name
    with * in it.
    """
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(name, pattern)
    return name == pattern or name.startswith(f"{pattern}.")


def select_parameters(text: str, names: Iterable[str], option: str, network: str) -> set[str]:
    """The parameters that patterns mean; one that means none is refused."""
    known = list(names)
    found: set[str] = set()
    for pattern in patterns_of(text):
        mine = {name for name in known if matches_pattern(name, pattern)}
        if not mine:
            raise BadInput(
                f"{option} = '{pattern}' is no part of {network}, which has "
                f"{_list_layers(known)}: give "
                "the beginning of a name up to a dot, or a pattern such as *.bias"
            )
        found |= mine
    return found


def _list_layers(names: list[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = (
        f" and {len(layers) - MAX_LAYERS_LISTED} more layers"
        if len(layers) > MAX_LAYERS_LISTED
        else ""
    )
    return ", ".join(layers[:MAX_LAYERS_LISTED]) + more


def freeze_builder(build: Build, text: str, network: str) -> Build:
    """A function that makes the network with the named parts frozen; refused where nothing would
    be, or all.
    """
    with torch.random.fork_rng(devices=[]):
        module = build()
    named = [name for name, p in module.named_parameters() if p.requires_grad]
    if select_parameters(text, named, "freeze", network) == set(named):
        raise BadInput(
            f"freeze = '{text}' leaves nothing of {network} to train: name fewer of its layers, "
            f"which are {_list_layers(named)}"
        )
    return partial(_build_frozen, build, text, network)


def _build_frozen(build: Build, text: str, network: str) -> nn.Module:
    module = build()
    named = dict(module.named_parameters())
    for name in select_parameters(text, named, "freeze", network):
        named[name].requires_grad_(False)
    return module
