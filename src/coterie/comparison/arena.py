"""The arena: all methods on the same federations, tuned alike, with several seeds, with clients
that do not answer, and with clients that come after training.

A cell is one federation with one seed, all methods on it: a comparison in a folder of its own, so
that what is finished is kept. The first seed tunes; the other cells of a federation take its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.comparison.execute import Watch, compare, resume_comparison
from coterie.comparison.limits import Limits
from coterie.comparison.plan import FILE, Grids, knobs_of, plan, read_plan
from coterie.comparison.trials import FOLDER, read_record
from coterie.comparison.usual import possible
from coterie.core.errors import BadInput, Diverged, nearest
from coterie.data.made import write_made
from coterie.experiment.columns import with_columns
from coterie.experiment.config import Experiment, change, read_toml
from coterie.methods.registry import METHODS
from coterie.results.folder import status

ARENA = Path(__file__).parents[1] / "arena" / "arena.toml"
TABLES = "tables"  # folder of the tables that are made for it
# what every method has alike: searching it would give some of them more work than others
ALIKE = ("steps", "epochs", "batch")


class Ground(NamedTuple):
    """A federation of the arena."""

    name: str
    says: str
    words: dict[str, Any]
    natural: bool = False  # its rows belong to clients already
    made: str = ""  # a table that is drawn first
    differs: str = ""  # what its clients differ in, for the page on choosing


class Arena(NamedTuple):
    """What is compared on what, and what each method gets to be tuned."""

    grounds: dict[str, Ground]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    trials: int
    drop: float
    newcomers: float  # the share of the clients that come after training, or how many
    common: dict[str, Any]
    options: dict[str, dict[str, Any]]
    rates: tuple[float, ...]  # times the federation's own, to choose from
    tune: dict[str, dict[str, Any]]  # values of a method's options, where its usual ones do not fit
    unlike: str  # what is not the same for all methods, for the page


class Cell(NamedTuple):
    """All methods on one federation with one seed."""

    ground: str
    seed: int
    drop: float = 0.0  # the chance that a client asked does not answer
    newcomers: float = 0.0  # the share of the clients that come after training, or how many

    @property
    def folder(self) -> Path:
        """Its place below the folder of all runs."""
        turn = "-drop" if self.drop else "-newcomers" if self.newcomers else ""
        return Path(self.ground) / f"seed{self.seed}{turn}"


class State(NamedTuple):
    """How far a cell has come."""

    done: int  # runs that ended, diverged ones too
    wanted: int  # 0: not known before it begins

    @property
    def finished(self) -> bool:
        return 0 < self.wanted == self.done


def read_arena(path: Path = ARENA, methods: Sequence[str] = ()) -> Arena:
    """The arena that a file describes, of all methods unless some are named."""
    words = read_toml(path)
    for name in methods:
        if name not in METHODS:
            raise BadInput(f"there is no method '{name}'{nearest(name, METHODS)}")
    return Arena(
        grounds={name: Ground(name, **table) for name, table in words["federations"].items()},
        methods=tuple(methods or METHODS),
        seeds=tuple(words["seeds"]),
        trials=words["trials"],
        drop=words["drop"],
        newcomers=words["newcomers"],
        common=words["common"],
        options=words["options"],
        rates=tuple(words["rates"]),
        tune=words.get("tune", {}),
        unlike=words.get("unlike", ""),
    )


def cells(arena: Arena, grounds: Sequence[str] = ()) -> list[Cell]:
    """All cells in the order in which they are run: every federation once before any comes
    again.
    """
    for name in grounds:
        if name not in arena.grounds:
            raise BadInput(f"there is no federation '{name}'{nearest(name, arena.grounds)}")
    first, *more = arena.seeds
    turns = [(first, 0.0, 0.0), (first, arena.drop, 0.0), (first, 0.0, arena.newcomers)]
    turns += [(seed, 0.0, 0.0) for seed in more]
    return [Cell(name, *turn) for turn in turns for name in grounds or arena.grounds]


def state(cell: Cell, out: Path) -> State:
    """How far a cell has come."""
    folder = out / cell.folder
    if not (folder / FILE).exists():
        return State(0, 0)
    places = list(places_of(folder).values())
    done = sum(status(place) in ("finished", "diverged") for place in places)
    return State(done, len(places))


def places_of(folder: Path) -> dict[str, Path]:
    """The folder of every method's run in a cell."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    return {name: folder / f"{name}-seed{seeds[0]}" for name in experiments}


def base_of(arena: Arena, ground: Ground, out: Path) -> Experiment:
    """What all methods share on a federation; its table is made where it has one."""
    words = arena.common | ground.words
    if ground.made:
        table = (out / TABLES / f"{ground.made}.csv").absolute()
        if not table.exists():
            write_made(ground.made, table)
        words = {"data.name": str(table)} | words
    return with_columns(change(Experiment(method=""), words))


def play(arena: Arena, cell: Cell, out: Path, watch: Watch, say: Callable[[str], None]) -> None:
    """Run a cell, or go on with it."""
    folder = out / cell.folder
    try:
        if (folder / FILE).exists():
            if not state(cell, out).finished:
                resume_comparison(folder, watch)
            return
        base = base_of(arena, arena.grounds[cell.ground], out)
        if cell.drop:
            base = replace(base, schedule=base.schedule._replace(drop=cell.drop))
        if cell.newcomers:
            base = change(base, {"data.newcomers": cell.newcomers})
        if cell == Cell(cell.ground, arena.seeds[0]):
            _tuned_here(arena, base, cell, folder, watch, say)
        else:
            _tuned_before(arena, base, cell, out, watch, say)
    except Diverged as stop:  # of every method, whose folders say it
        say(f"{cell.ground}: {stop}")


def _tuned_here(
    arena: Arena,
    base: Experiment,
    cell: Cell,
    folder: Path,
    watch: Watch,
    say: Callable[[str], None],
) -> None:
    """The first seed: every method that can run here is tuned, then measured."""
    own = {name: words for name, words in arena.options.items() if name in arena.methods}
    planned = plan(arena.methods, replace(base, seed=cell.seed), own)
    runs = _without_refused(planned, cell.ground, say)
    grids: Grids = {name: searched(arena, one, own.get(name, {})) for name, one in runs.items()}
    limits = Limits(trials=arena.trials, listed=True)
    compare(runs, [cell.seed], folder, watch, grids, search=limits)


def searched(arena: Arena, experiment: Experiment, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """What a search turns of a method: some rates, and what is its own."""
    found = knobs_of(experiment, (*ALIKE, *fixed), arena.tune.get(experiment.method, {}))
    if "rate" in found:
        found["rate"] = [float(f"{experiment.train.rate * factor:.3g}") for factor in arena.rates]
    return found


def _tuned_before(
    arena: Arena,
    base: Experiment,
    cell: Cell,
    out: Path,
    watch: Watch,
    say: Callable[[str], None],
) -> None:
    """Another seed, clients that do not answer, or newcomers: with the words that the first seed
    chose.
    """
    first = out / Cell(cell.ground, arena.seeds[0]).folder
    names = [name for name in places_of(first) if name in arena.methods]
    own = {name: arena.options.get(name, {}) | best_of(first, name) for name in names}
    planned = plan(names, replace(base, seed=cell.seed), own)
    if cell.newcomers:  # fewer clients train, which a method may refuse
        planned = _without_refused(planned, f"{cell.ground} with newcomers", say)
    compare(planned, [cell.seed], out / cell.folder, watch)


def _without_refused(
    planned: Mapping[str, Experiment], where: str, say: Callable[[str], None]
) -> dict[str, Experiment]:
    """The runs that are possible; what is left out is said with the reason."""
    names, refused = possible(planned)
    for name, why in refused.items():
        say(f"{where}: without {name}: {why}")
    return {name: planned[name] for name in names}


def best_of(folder: Path, method: str) -> dict[str, Any]:
    """What the first seed chose for a method."""
    record = read_record(folder / FOLDER / method)
    return dict(record.best or {}) if record else {}


def ready(arena: Arena, cell: Cell, out: Path) -> bool:
    """Whether a cell has what it needs: the words that the first seed of its federation chose."""
    first = Cell(cell.ground, arena.seeds[0])
    return cell == first or state(first, out).finished


def run(
    arena: Arena,
    out: Path,
    wanted: Sequence[Cell],
    watch: Watch,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Cell]:
    """Run cells one after another, or go on with them; each is given back once it is over."""
    for cell in wanted:
        if ready(arena, cell, out):
            play(arena, cell, out, watch, say)
            yield cell
        else:
            say(f"{cell.folder} waits for seed {arena.seeds[0]} of {cell.ground}, which tunes")


def tuned_words(arena: Arena, out: Path, ground: str) -> Mapping[str, dict[str, Any]]:
    """What was chosen for each method on a federation."""
    folder = out / Cell(ground, arena.seeds[0]).folder
    found = {name: best_of(folder, name) for name in arena.methods}
    return {name: words for name, words in found.items() if words}
