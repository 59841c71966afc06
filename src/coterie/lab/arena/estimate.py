"""What the arena costs on this machine, from a few rounds of FedAvg on each federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from coterie.lab.arena.cells import Arena, ArenaCell, base_of, list_cells, state_of
from coterie.lab.arena.guide import read_guide
from coterie.lab.papers.durations import time_rounds
from coterie.running.assembly import load_federation

ROUNDS = 5  # that are played
TRIAL_SHARE = 0.4  # of a run's rounds that a trial gets, as most are stopped early
UNKNOWN = 1.5  # times FedAvg's work of a method that no arena has measured


class ArenaEstimate(NamedTuple):
    """Processor seconds on one thread."""

    ground: str
    run: float  # one run of FedAvg
    all: float  # every cell of the federation
    left: float  # of what is not finished


def estimate_federation(arena: Arena, name: str, out: Path) -> ArenaEstimate:
    """What a federation takes: FedAvg's time, the work of each method in times of it, and what the
    trials cost.
    """
    base = replace(base_of(arena, arena.grounds[name], out), method="fedavg")
    run = time_rounds(base, load_federation(base), ROUNDS)
    times = read_guide().gradients
    work = run * sum(times.get(method, UNKNOWN) for method in arena.methods)
    cells = list_cells(arena, [name])
    costs = [work * (1 + _trials_of(arena, cell)) for cell in cells]
    parts = [_share_left(cell, out) for cell in cells]
    left = sum(cost * part for cost, part in zip(costs, parts, strict=True))
    return ArenaEstimate(name, run, sum(costs), left)


def _trials_of(arena: Arena, cell: ArenaCell) -> float:
    """Whole runs that a cell's trials are worth."""
    return arena.trials * TRIAL_SHARE if cell == ArenaCell(cell.ground, arena.seeds[0]) else 0.0


def _share_left(cell: ArenaCell, out: Path) -> float:
    state = state_of(cell, out)
    return 1 - state.done / state.wanted if state.wanted else 1.0


def estimate_arena(arena: Arena, names: Sequence[str], out: Path) -> list[ArenaEstimate]:
    """What each of some federations takes."""
    return [estimate_federation(arena, name, out) for name in names]
