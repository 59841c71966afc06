"""A federation's run played again on this machine, from its journal of who answered when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.core.errors import BadInput
from coterie.core.method import stages
from coterie.data.federation import Federation
from coterie.engines.base import Moment, Outcome, Settings
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.states import States
from coterie.experiment.build import Networks, models_of
from coterie.methods.registry import METHODS
from coterie.results.folder import read_about, read_experiment
from coterie.running.loop import Loop

JOURNAL = "answers.jsonl"
Key = tuple[str, int, int]  # stage, round, exchange


def journal(folder: Path) -> list[dict[str, Any]]:
    """The exchanges of a run: asked, answered, seconds, training (the longest site's), tries, time.

    A server that went back to its checkpoint did some exchanges twice: the last time counts. A line that was cut off is left out.
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
        rounds[line["stage"], line["round"]] = rounds.get((line["stage"], line["round"]), 0.0) + more
    return exchanges, list(rounds.values())


class _Again(LocalEngine):
    """A local engine whose clients forget their states where sites had lost theirs."""

    anew: Mapping[Key, Sequence[int]] = {}

    def exchange(self, index: int, when: Moment, *rest: Any, **named: Any) -> Outcome:
        lost = set(self.anew.get((when.stage, when.round, index), ()))
        if lost:
            self.states = [_without(store, lost) for store in self.states]
        return super().exchange(index, when, *rest, **named)


def _without(store: States, lost: set[int]) -> States:
    kept, new = [i for i in store.slots if i not in lost], States()
    if kept:
        new.scatter(kept, store.gather(kept))
    return new


def replay(folder: Path, federation: Federation, models: Networks = None) -> Loop:
    """The run of a folder on the local engine, with the same sites answering in every exchange; it stands at the end.

    `federation` has the sites' own rows, cut as the sites cut them: `coterie.data.dealing.build` of a folder with one file a
    site does so. Uploads that were clipped or noised at the sites are not so here.
    """
    experiment, known = read_experiment(folder), read_about(folder)
    rows = {part: [len(r) for r in getattr(federation, part)] for part in ("train", "validation", "test")}
    if federation.names != known["clients"] or rows != known["rows"]:
        raise BadInput(
            f"the federation has clients {', '.join(federation.names[:10])} with other rows or another order than the sites of "
            f"{folder}, {', '.join(known['clients'][:10])}: give the same files, shares and seed"
        )
    lines = journal(folder)
    came = [name for line in lines for name in line.get("came", [])]
    if came:
        raise BadInput(f"{', '.join(came)} came to {folder} on the way: a run is replayed from its start, with the same sites")
    nets = models_of(experiment, federation, models)
    programs = [stages(METHODS[experiment.method](net, experiment.train, **experiment.options)) for net in nets]
    alone = [Settings("sequential", 1, "no")] * len(nets)
    engine = _Again(federation, nets, programs, np.array(known["architecture"]), experiment.seed, alone)
    engine.anew = {_key(line): line["anew"] for line in lines}
    answers = {_key(line): set(line["answered"]) for line in lines}
    loop = Loop(engine, federation, experiment.schedule, experiment.seed, answers=answers)
    loop.go()
    return loop


def _key(line: dict[str, Any]) -> Key:
    return line["stage"], line["round"], line["exchange"]


def largest_difference(loop: Loop, files: Mapping[int, Path]) -> float:
    """The largest difference of any parameter between replayed models and the model files of sites."""
    largest = 0.0
    for _, chunk, views in loop.engine.points(sorted(files), loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            mine = {n: t[k] for n, t in (views["personal"].params | views["personal"].buffers).items()}
            theirs = load_file(files[i])
            if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in theirs.items()}:
                raise BadInput(f"{files[i]} holds another network than client {i} of the replay")
            gaps = [float((t.double() - theirs[n].double()).abs().max()) for n, t in mine.items() if t.numel()]
            largest = max([largest, *(g if g == g else torch.inf for g in gaps)])
    return largest
