"""A federation's run played again on this machine, from its journal of who answered when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from coterie.core.errors import BadInput
from coterie.data.federation import Federation
from coterie.engines.base import Outcome, Setup, Trip
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.states import States
from coterie.experiment.build import Networks
from coterie.results.folder import read_about, read_experiment
from coterie.running.assemble import assemble, open_loop
from coterie.running.loop import Loop

JOURNAL = "answers.jsonl"
Key = tuple[str, int, int]  # stage, round, exchange


def journal(folder: Path) -> list[dict[str, Any]]:
    """The exchanges of a run: asked, answered, seconds, training (the longest site's), tries, time.

    A server that went back to its checkpoint did some exchanges twice: the last time counts. A line
    that was cut off is left out.
    """
    path = folder / JOURNAL
    if not path.exists():
        raise BadInput(f"{folder} has no {JOURNAL}: only a run of real sites can be replayed")
    found: dict[Key, dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
            found[line["stage"], line["round"], line["exchange"]] = line
        except (ValueError, KeyError, TypeError):
            continue
    return list(found.values())


def overhead(folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of every exchange, and of every round, beyond the slowest site's own work."""
    lines = [line for line in journal(folder) if "came" not in line]
    exchanges = [line["seconds"] - line["training"] for line in lines]
    rounds: dict[tuple[str, int], float] = {}
    for line, more in zip(lines, exchanges, strict=True):
        rounds[line["stage"], line["round"]] = (
            rounds.get((line["stage"], line["round"]), 0.0) + more
        )
    return exchanges, list(rounds.values())


class _Again(LocalEngine):
    """A local engine whose clients forget their states where sites had lost theirs."""

    def __init__(self, setup: Setup, anew: Mapping[Key, Sequence[int]]):
        self._anew = anew  # who lost its state before each exchange
        super().__init__(setup)

    def exchange(self, trip: Trip) -> Outcome:
        lost = set(self._anew.get((trip.when.stage, trip.when.round, trip.number), ()))
        if lost:
            self.states = [_without(store, lost) for store in self.states]
        return super().exchange(trip)


def _without(store: States, lost: set[int]) -> States:
    kept, new = [i for i in store.slots if i not in lost], States()
    if kept:
        new.scatter(kept, store.gather(kept))
    return new


def replay(folder: Path, federation: Federation, models: Networks = None) -> Loop:
    """The run of a folder on the local engine, with the same sites answering in every exchange; it
    stands at the end.

    `federation` has the sites' own rows, cut as the sites cut them: `coterie.data.dealing.build` of
    a folder with one file a site does so. Uploads that were clipped or noised at the sites are not
    so here.
    """
    experiment, known = read_experiment(folder), read_about(folder)
    rows = {
        part: [len(r) for r in getattr(federation, part)]
        for part in ("train", "validation", "test")
    }
    if federation.names != known["clients"] or rows != known["rows"]:
        raise BadInput(
            f"the federation has clients {', '.join(federation.names[:10])} with other rows or "
            "another order than the sites of "
            f"{folder}, {', '.join(known['clients'][:10])}: give the same files, shares and seed"
        )
    lines = journal(folder)
    came = [name for line in lines for name in line.get("came", [])]
    if came:
        raise BadInput(
            f"{', '.join(came)} came to {folder} on the way: a run is replayed from its start, "
            "with the same sites"
        )
    answers = {_key(line): set(line["answered"]) for line in lines}
    anew = {_key(line): line["anew"] for line in lines}
    took_part = sorted(set().union(*answers.values()))
    assembly = assemble(experiment, federation, models, known["architecture"], took_part)
    loop = open_loop(assembly, lambda setup: _Again(setup.alone(), anew), answers)
    loop.go()
    return loop


def _key(line: dict[str, Any]) -> Key:
    return line["stage"], line["round"], line["exchange"]


def largest_difference(loop: Loop, files: Mapping[int, Path]) -> float:
    """The largest difference of any parameter between replayed models and the model files of
    sites.
    """
    largest = 0.0
    for _, chunk, views in loop.engine.points(sorted(files), loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            mine = {
                n: t[k] for n, t in (views["personal"].params | views["personal"].buffers).items()
            }
            theirs = load_file(files[i])
            if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in theirs.items()}:
                raise BadInput(f"{files[i]} holds another network than client {i} of the replay")
            gaps = [
                float((t.double() - theirs[n].double()).abs().max())
                for n, t in mine.items()
                if t.numel()
            ]
            largest = max([largest, *(g if g == g else torch.inf for g in gaps)])
    return largest
