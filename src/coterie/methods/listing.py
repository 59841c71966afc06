"""The methods as a list shows them, from a file beside them, so that a list needs no tensors.

`make docs` writes the file from the registry, and a test holds it to it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.options import declared_options

FILE = Path(__file__).parent / "listing.json"
GROUP = "coterie.methods"  # entry points of other packages


class MethodEntry(NamedTuple):
    """What a list says of a method."""

    name: str
    when: str  # to use it
    needs: list[str]  # beyond training rows
    paper: str
    options: dict[str, Any]  # with their defaults


def list_methods() -> list[MethodEntry]:
    """Every method; all are loaded only where other packages bring some of their own."""
    own = [MethodEntry(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))]
    if {point.name for point in entry_points(group=GROUP)} <= {found.name for found in own}:
        return own
    from coterie.methods.registry import METHODS

    return describe_methods(METHODS)


def describe_methods(methods: Mapping[str, Callable[..., Any]]) -> list[MethodEntry]:
    """What a list says of these builders."""
    from coterie.methods.declare import when_of
    from coterie.methods.needs import needs_of

    return [
        MethodEntry(
            name=name,
            when=when_of(builder),
            needs=list(needs_of(builder)),
            paper=paper_of(inspect.getdoc(inspect.getmodule(builder)) or ""),
            options={k: default for k, (_, default) in declared_options(builder).items()},
        )
        for name, builder in methods.items()
    ]


def paper_of(text: str) -> str:
    """The first paragraph of the text at the head of a method's file: its paper."""
    return " ".join(text.split("\n\n")[0].split())


def text_of(found: list[MethodEntry]) -> str:
    """The list as the file holds it."""
    return json.dumps([one._asdict() for one in found], indent=1, ensure_ascii=False) + "\n"
