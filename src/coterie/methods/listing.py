"""The methods as a list shows them, from a file beside them, so that a list needs no tensors.

`make docs` writes the file from the registry, and a test holds it to it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.options import declared_options
from coterie.core.plugins import PLUGINS
from coterie.methods.families import family_of

FILE = Path(__file__).parent / "listing.json"
GROUP = "coterie.methods"  # entry points of other packages


class MethodEntry(NamedTuple):
    """What a list says of a method."""

    name: str
    when: str  # to use it
    needs: list[str]  # beyond training rows
    paper: str
    options: dict[str, Any]  # with their defaults
    family: str  # methods that share its idea
    year: int | None  # of the paper
    traffic: str = ""  # floats down / up per client and round, as docs/methods.md measures them
    rank: float | None = None  # mean rank in the arena
    wins: Sequence[str] = ()  # federations of the arena on which nobody is better
    work: float | None = None  # gradients in the arena, times FedAvg's

    def describe_arena(self) -> str:
        """How it did in the arena, in a line; empty where it was not there."""
        if self.rank is None:
            return ""
        best = f"best on {', '.join(self.wins)}" if self.wins else "nowhere the best"
        work = "" if self.work is None else f", {self.work:.1f} times FedAvg's gradients"
        return f"mean rank {self.rank:.1f}, {best}{work}"


def list_methods() -> list[MethodEntry]:
    """Every method; all are loaded only where other packages or plugins bring some of their own."""
    own = [MethodEntry(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))]
    known = {found.name for found in own}
    if not PLUGINS and {point.name for point in entry_points(group=GROUP)} <= known:
        return own
    from coterie.methods.registry import METHODS

    return own + describe_methods({k: v for k, v in METHODS.items() if k not in known})


def describe_methods(
    methods: Mapping[str, Callable[..., Any]],
    traffic: Mapping[str, str] | None = None,
    arena: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[MethodEntry]:
    """What a list says of these builders, with what was measured of them."""
    from coterie.methods.declare import when_of
    from coterie.methods.needs import needs_of

    papers = {
        name: paper_of(inspect.getdoc(inspect.getmodule(builder)) or "")
        for name, builder in methods.items()
    }
    return [
        MethodEntry(
            name=name,
            when=when_of(builder),
            needs=list(needs_of(builder)),
            paper=papers[name],
            options={k: default for k, (_, default) in declared_options(builder).items()},
            family=family_of(name),
            year=year_of(papers[name]),
            traffic=(traffic or {}).get(name, ""),
            **(arena or {}).get(name, {}),
        )
        for name, builder in methods.items()
    ]


def paper_of(text: str) -> str:
    """The first paragraph of the text at the head of a method's file: its paper."""
    return " ".join(text.split("\n\n")[0].split())


def year_of(paper: str) -> int | None:
    """The year that a paper's line names first; arXiv's numbers begin like years."""
    found = re.search(r"(?<![:.\d])\b(?:19\d\d|20[0-2]\d)\b(?!\.\d)", paper)
    return int(found[0]) if found else None


def text_of(found: list[MethodEntry]) -> str:
    """The list as the file holds it."""
    return json.dumps([one._asdict() for one in found], indent=1, ensure_ascii=False) + "\n"
