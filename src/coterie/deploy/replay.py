"""A deployment's run played again on this machine, from its journal of who answered when."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from coterie.core.errors import BadInput
from coterie.core.model import Model
from coterie.core.point import pick
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.read.user_data import SUFFIXES
from coterie.deploy.claims import cap_sizes
from coterie.deploy.config_files import ServerConfig
from coterie.deploy.scales import read_scales, scale_federation
from coterie.deploy.site_rows import join_sites, read_rows, site_federation
from coterie.engines.base import EngineSetup, ExchangeRequest, ExchangeResult
from coterie.engines.local.engine import LocalEngine
from coterie.engines.local.states import StateStore
from coterie.experiment.build import Networks
from coterie.results.folder import read_about, read_experiment
from coterie.running.assembly import assemble, open_loop
from coterie.running.loop import Loop

JOURNAL = "answers.jsonl"
Key = tuple[str, int, int]  # stage, round, exchange


def read_exchanges(folder: Path) -> list[dict[str, Any]]:
    """The exchanges of a run: asked, answered, seconds, training (the longest site's), tries, time.

    A server that went back to its checkpoint did some exchanges twice: the last time counts. A line
    that was cut off is left out here, and noticed by `replay`.
    """
    return read_journal(folder)[0]


def read_journal(folder: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The lines of the journal that count, and the numbers of those that cannot be read."""
    path = folder / JOURNAL
    if not path.exists():
        raise BadInput(f"{folder} has no {JOURNAL}: only a run of real sites can be replayed")
    found: dict[Key, dict[str, Any]] = {}
    torn = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, written in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(written)
            found[line["stage"], line["round"], line["exchange"]] = line
        except (ValueError, KeyError, TypeError):
            torn.append(number)
    return list(found.values()), torn


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append to a journal; a line that was cut off before stays alone on its own."""
    with path.open("ab+") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
        start = b"" if not size or file.read(1) == b"\n" else b"\n"
        file.write(start + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def measure_overhead(folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of every exchange, and of every round, beyond the slowest site's own work."""
    lines = [line for line in read_exchanges(folder) if "came" not in line]
    exchanges = [line["seconds"] - line["training"] for line in lines]
    rounds: dict[tuple[str, int], float] = {}
    for line, more in zip(lines, exchanges, strict=True):
        rounds[line["stage"], line["round"]] = (
            rounds.get((line["stage"], line["round"]), 0.0) + more
        )
    return exchanges, list(rounds.values())


class _ReplayEngine(LocalEngine):
    """A local engine whose clients forget their states where sites had lost theirs."""

    def __init__(self, setup: EngineSetup, anew: Mapping[Key, Sequence[int]], claims: float):
        self._lost_states = anew  # who lost its state before each exchange
        self._claims = claims
        super().__init__(setup)

    def take(self, federation: Federation, architecture: np.ndarray) -> None:
        super().take(federation, architecture)
        self.sizes = cap_sizes(self.sizes, self._claims)

    def exchange(self, trip: ExchangeRequest) -> ExchangeResult:
        lost = set(self._lost_states.get((trip.when.stage, trip.when.round, trip.number), ()))
        if lost:
            self.states = [_forget_states(store, lost) for store in self.states]
        return super().exchange(trip)


def _forget_states(store: StateStore, lost: set[int]) -> StateStore:
    kept, new = [i for i in store.slots if i not in lost], StateStore()
    if kept:
        new.scatter(kept, store.gather(kept))
    return new


def gather_sites(
    files: Path, server: ServerConfig, label: str = "label", features: str = ""
) -> Federation:
    """The rows of all sites on this machine, from a folder with NAME.csv (or .parquet, .npz, ...)
    of each: numbered as in server.toml, whatever the order of the files, and cut as sites cut them.
    """
    shape, clients = server.data, len(server.names)
    own = [
        site_federation(
            read_rows(_find_file(files, name), label, features, shape),
            shape,
            name,
            i,
            clients,
            None,
        )
        for i, name in enumerate(server.names)
    ]
    starts = np.cumsum([0, *(len(f.y) for f in own)])[:-1]
    train, validation, select, test = (
        [getattr(f, part)[i] + starts[i] for i, f in enumerate(own)] for part in PARTS
    )
    own = join_sites(own) if shape.table else own
    return own[0]._replace(
        x=torch.cat([f.x for f in own]),
        y=torch.cat([f.y for f in own]),
        train=train,
        validation=validation,
        select=select,
        test=test,
        names=list(server.names),
    )


def _find_file(files: Path, name: str) -> Path:
    """The file of a site, known by its name."""
    found = [path for path in sorted(files.glob(f"{name}.*")) if path.suffix in SUFFIXES]
    if len(found) != 1:
        have = ", ".join(path.name for path in found) or "none"
        kinds = ", ".join(SUFFIXES)
        raise BadInput(f"{files} must have one file {name}.* of kind {kinds}; it has {have}")
    return found[0]


def replay(
    folder: Path,
    federation: Federation,
    models: Networks = None,
    say: Callable[[str], None] = print,
) -> Loop:
    """The run of a folder on the local engine, with the same sites answering in every exchange; it
    stands at the end.

    `federation` has the sites' own rows, numbered and cut as the sites were: `gathered` makes it
    from their files; rows are scaled as the sites scaled theirs. Uploads that were clipped or
    noised at the sites are not so here.
    """
    experiment, known = read_experiment(folder), read_about(folder)
    scales = read_scales(folder)
    federation = scale_federation(federation, scales)
    _check_rows(folder, federation, known)
    lines, torn = read_journal(folder)
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
    claims = float(known.get("server", {}).get("rules.claims", 0.0))
    loop = open_loop(assembly, lambda setup: _ReplayEngine(setup.alone(), anew, claims), answers)
    _check_whole(folder, loop, answers, torn, say)
    loop.go()
    return loop


def _check_rows(folder: Path, federation: Federation, known: Mapping[str, Any]) -> None:
    """Refuse other sites, another order or other rows than those of the run.

    A site's number decides how its rows are cut, so clients in another order cannot be renamed.
    """
    mine, theirs = list(federation.names), list(known["clients"])
    if mine != theirs and sorted(mine) == sorted(theirs):
        raise BadInput(
            f"the clients {', '.join(mine[:10])} are those of {folder} in another order than "
            f"{', '.join(theirs[:10])}: make the federation by "
            "`coterie.deploy.replay.gather_sites`, "
            "which knows sites by their names"
        )
    rows = {part: [len(r) for r in part_of(federation, part)] for part in PARTS}
    if mine != theirs or rows != known["rows"]:
        raise BadInput(
            f"the federation has clients {', '.join(mine[:10])} with other rows or "
            "another order than the sites of "
            f"{folder}, {', '.join(theirs[:10])}: give the same files, shares and seed"
        )


def _check_whole(
    folder: Path,
    loop: Loop,
    answers: Mapping[Key, set[int]],
    torn: Sequence[int],
    say: Callable[[str], None],
) -> None:
    """Tell of journal lines that cannot be read; refuse where an exchange has no other line."""
    lost = [
        (stage.name, number)
        for stage, rounds in zip(loop.program, loop.lengths, strict=True)
        for number in range(rounds)
        if (stage.name, number, 0) not in answers
        or any(
            (stage.name, number, k) not in answers and answers[stage.name, number, k - 1]
            for k in range(1, len(stage.method.round))
            if (stage.name, number, k - 1) in answers
        )
    ]
    shown = ", ".join(str(number) for number in torn[:10])
    if lost:
        stage, number = lost[0]
        why = f"line {shown} cannot be read" if torn else "it ends before the run did"
        raise BadInput(
            f"{folder / JOURNAL} does not say who answered in {stage}, round {number + 1} ({why}): "
            "take the journal from a back-up; without this line the run cannot be replayed"
        )
    if torn:
        say(
            f"{folder / JOURNAL}: line {shown} cannot be read, as when a server is killed while it "
            "writes; every exchange of the run has a whole line, so nothing is missing"
        )


def _key(line: dict[str, Any]) -> Key:
    return line["stage"], line["round"], line["exchange"]


def largest_difference(loop: Loop, files: Mapping[int, Path]) -> float:
    """The largest difference of any parameter between replayed models and the model files of
    sites.
    """
    largest = 0.0
    for a, chunk, views in loop.engine.points(sorted(files), loop.payload(), loop.when()):
        for k, i in enumerate(chunk):
            model: Model = loop.engine.model_of(a, "personal")
            mine = model.tensors(pick(views["personal"], k))
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
