"""Parts of a network by name: which parameters are meant, and those that do not train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn

from coterie.core.errors import BadInput

SHOWN = 12  # layers that a refusal lists
Build = Callable[[], nn.Module]


def patterns_of(text: str) -> list[str]:
    """Patterns from a text with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def meant(name: str, pattern: str) -> bool:
    """Whether a pattern means a parameter: a layer by its name with all that is in it, or a name
    with * in it.
    """
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(name, pattern)
    return name == pattern or name.startswith(f"{pattern}.")


def chosen(text: str, names: Iterable[str], word: str, network: str) -> set[str]:
    """The parameters that patterns mean; one that means none is refused."""
    known = list(names)
    found: set[str] = set()
    for pattern in patterns_of(text):
        mine = {name for name in known if meant(name, pattern)}
        if not mine:
            raise BadInput(
                f"{word} = '{pattern}' is no part of {network}, which has {_listed(known)}: give "
                "the beginning of a name up to a dot, or a pattern such as *.bias"
            )
        found |= mine
    return found


def _listed(names: list[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    more = f" and {len(layers) - SHOWN} more layers" if len(layers) > SHOWN else ""
    return ", ".join(layers[:SHOWN]) + more


def freezing(build: Build, text: str, network: str) -> Build:
    """A function that makes the network with the named parts frozen; refused where nothing would
    be, or all.
    """
    with torch.random.fork_rng(devices=[]):
        module = build()
    named = [name for name, p in module.named_parameters() if p.requires_grad]
    if chosen(text, named, "freeze", network) == set(named):
        raise BadInput(
            f"freeze = '{text}' leaves nothing of {network} to train: name fewer of its layers, "
            f"which are {_listed(named)}"
        )
    return partial(_frozen, build, text, network)


def _frozen(build: Build, text: str, network: str) -> nn.Module:
    module = build()
    named = dict(module.named_parameters())
    for name in chosen(text, named, "freeze", network):
        named[name].requires_grad_(False)
    return module
