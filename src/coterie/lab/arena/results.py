"""What the arena found: one row per run, in one Parquet file that is small enough to be kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.analysis.nan_math import drop_nan, nan_mean
from coterie.analysis.scores import find_score
from coterie.comparison.plan import FILE, read_plan
from coterie.core.errors import BadInput
from coterie.core.files import check_regular_file, move_into_place, read_text, write_text
from coterie.lab.arena.cells import (
    Arena,
    ArenaCell,
    StoredRuns,
    base_of,
    list_cells,
    options_chosen,
    run_folders_of,
    state_of,
)
from coterie.lab.arena.properties import measure_properties
from coterie.lab.arena.rules import ArenaScores, Properties
from coterie.methods.registry import METHODS
from coterie.results.costs import costs_of
from coterie.results.folder import read_about, read_status
from coterie.results.metric_table import curve_of, values_of
from coterie.results.newcomer_results import WAYS
from coterie.results.run import Run, load_run
from coterie.running.assembly import load_federation
from coterie.running.newcomer_training import FINE_TUNE_RULE

CLIENTS = pa.list_(pa.float32())
# what older files do not have, with what it is where it is not known
ADDED_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "epoch": (pa.int64(), 0),  # steps of all clients in one epoch of their training rows
    # of every client after fewer steps, and where FedAvg's gradients are spent
    "course": (pa.list_(pa.struct([("steps", pa.int32()), ("values", CLIENTS)])), []),
    "equal": (CLIENTS, []),
}
# of runs that kept clients out of training, with what it is where a file does not have it
NEWCOMER_COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "newcomers": (pa.float32(), 0.0),  # the share of the clients, or how many; 0: an ordinary run
    "newcomer_does": (pa.string(), ""),  # by the rule; empty: the method has none
    # of every newcomer on its test rows, way by way
    **{f"newcomers_{way}": (pa.list_(pa.float32()), []) for way in WAYS},
}
RUNS = pa.schema(
    [
        ("federation", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int32()),
        ("drop", pa.float32()),  # the chance that a client asked did not answer
        ("measure", pa.string()),
        ("values", pa.list_(pa.float32())),  # of every client on test rows; empty: it diverged
        ("rows", pa.list_(pa.int32())),  # test rows of every client
        ("bytes", pa.int64()),  # up and down, of all clients and rounds
        ("gradients", pa.int64()),
        ("seconds", pa.float32()),  # of training, measured here
        ("words", pa.string()),  # what was chosen on validation rows, as JSON
        *((name, kind) for name, (kind, _) in ADDED_COLUMNS.items()),
        *((name, kind) for name, (kind, _) in NEWCOMER_COLUMNS.items()),
    ]
)
PROPERTIES = "properties.json"
Row = Mapping[str, Any]
BASELINES = ("local", "fedavg")
BOUNDS = ("oracle",)  # methods that know what nobody knows
ABOUT = "arena"  # the key of what the file says of itself


class ArenaResults(NamedTuple):
    """The runs of an arena, and what is to be known of all of them."""

    runs: pa.Table
    about: dict[str, Any]  # version, date, machine, rounds, trials, federations


def collect_results(arena: Arena, out: Path, stored: ArenaResults | None = None) -> ArenaResults:
    """What the finished runs below a folder say, and what is stored of runs that are not there."""
    before = list_stored(stored)
    rows: list[dict[str, Any]] = []
    known: dict[str, Any] = {}
    federations: dict[str, dict[str, Any]] = dict(stored.about["federations"]) if stored else {}
    for cell in list_cells(arena):
        ended = _load_ended(out / cell.folder) if state_of(cell, out).finished else []
        if not ended:
            continue
        base = _count_gradients(dict(ended).get("fedavg")) or _count_stored(stored, cell)
        chosen = options_chosen(arena, cell.ground, out, before)
        for method, run in ended:
            known = known or dict(_about_of(run))
            rows.append(_build_row(cell, method, run, chosen.get(method, {}), arena.budgets, base))
        federations[cell.ground] = _describe_federation(
            arena, cell.ground, out, dict(ended), federations.get(cell.ground, {})
        )
    rows += _list_rest(stored, rows)
    if not rows:
        raise BadInput(f"no cell of the arena is finished below {out}: `coterie arena --run`")
    known = known or (dict(stored.about) if stored else {})
    about = known | {
        "rounds": arena.common["schedule.rounds"],
        "steps": arena.common["train.local_steps"],
        "trials": sorted({count for one in federations.values() for count in one["trials"]}),
        "not_run": [name for name in arena.methods if name not in {row["method"] for row in rows}],
        "drop": arena.drop,
        "newcomers": arena.newcomers,
        "budgets": list(arena.budgets),
        "planned": list(arena.grounds),
        "unlike": arena.unlike,
        "federations": {name: federations[name] for name in arena.grounds if name in federations},
    }
    order = {cell: k for k, cell in enumerate(list_cells(arena))}
    names = {name: k for k, name in enumerate(METHODS)}
    rows.sort(key=lambda row: (order.get(_cell_of(row), len(order)), names.get(row["method"], -1)))
    return ArenaResults(pa.Table.from_pylist(rows, RUNS), about)


def _describe_federation(
    arena: Arena, name: str, out: Path, ended: Mapping[str, Run | Path], stored: dict[str, Any]
) -> dict[str, Any]:
    """What is known of a federation from its runs, and from those that are stored."""
    folder = out / arena.first_of(name).folder
    settled = {
        method: _find_least_loss(ended[method])
        for method in BASELINES
        if method in ended and not stored.get("settled", {}).get(method)
    }
    trials = _find_trials(folder) if (folder / FILE).exists() else set()
    return {
        "says": arena.grounds[name].says,
        "natural": arena.grounds[name].natural,
        "differs": arena.grounds[name].differs,
        "settled": settled | stored.get("settled", {}),
        "trials": sorted(trials | set(stored.get("trials", ()))),
        "properties": stored.get("properties") or load_properties(arena, name, out)._asdict(),
    }


def list_stored(stored: ArenaResults | None) -> StoredRuns:
    """What a file of results holds, for an arena that goes on from it."""
    chosen: dict[ArenaCell, dict[str, dict[str, Any]]] = {}
    for row in stored.runs.to_pylist() if stored else ():
        chosen.setdefault(_cell_of(row), {})[row["method"]] = json.loads(row["words"])
    told = stored.about["federations"] if stored else {}
    return StoredRuns(chosen, {name: max(one["trials"]) for name, one in told.items()})


def _cell_of(row: Row) -> ArenaCell:
    """The cell of a stored run; the file has shares in single precision."""
    shares = (round(float(row[name]), 6) for name in ("drop", "newcomers"))
    return ArenaCell(row["federation"], row["seed"], *shares)


def _count_stored(stored: ArenaResults | None, cell: ArenaCell) -> int | None:
    """Gradients of FedAvg's run in a cell; None where it is not stored or diverged."""
    for row in stored.runs.to_pylist() if stored else ():
        if row["method"] == "fedavg" and _cell_of(row) == cell:
            return int(row["gradients"]) or None
    return None


def _list_rest(stored: ArenaResults | None, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The stored runs that others do not replace."""
    replaced = {(_cell_of(row), row["method"]) for row in rows}
    found: list[dict[str, Any]] = stored.runs.to_pylist() if stored else []
    return [row for row in found if (_cell_of(row), row["method"]) not in replaced]


def _find_trials(folder: Path) -> set[int]:
    """How many trials each method of a cell had, if it tuned: a cell is ended with the number that
    it was begun with.
    """
    search = read_plan(folder / FILE).search
    return {search.trials} if search and search.trials else set()


def load_properties(arena: Arena, name: str, out: Path) -> Properties:
    """The properties of a federation, measured once and kept beside its runs."""
    path = out / name / PROPERTIES
    if not path.exists():
        base = replace(base_of(arena, arena.grounds[name], out), method="fedavg")
        found = measure_properties(base, load_federation(base))
        write_text(path, json.dumps({k: round(v, 5) for k, v in found._asdict().items()}))
    return Properties(**json.loads(read_text(path)))


def _load_ended(folder: Path) -> list[tuple[str, Run | Path]]:
    """Every run that came to its end; of one that diverged, its folder."""
    found: list[tuple[str, Run | Path]] = []
    for method, where in run_folders_of(folder).items():
        state = read_status(where)
        if state == "finished":
            found.append((method, load_run(where)))
        elif state == "diverged":
            found.append((method, where))
    return found


def _about_of(run: Run | Path) -> Mapping[str, Any]:
    about = run.about if isinstance(run, Run) else read_about(run)
    return {
        option: about[option] for option in ("coterie", "versions", "python", "machine", "date")
    }


def _find_least_loss(run: Run | Path) -> int:
    """The round in which the loss on validation rows is least; 0 where it is not known."""
    if not isinstance(run, Run):
        return 0
    rounds, means = curve_of(run.table, "loss", "validation")
    return int(rounds[np.nanargmin(means)]) if len(means) and not np.isnan(means).all() else 0


def _count_gradients(run: Run | Path | None) -> int | None:
    """Gradients of all clients in all rounds; None where a run did not come to its end."""
    return int(costs_of(run).gradients.sum()) if isinstance(run, Run) else None


def _build_row(
    cell: ArenaCell,
    method: str,
    run: Run | Path,
    chosen: Mapping[str, Any],
    budgets: Sequence[int],
    base: int | None,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "federation": cell.ground,
        "method": method,
        "seed": cell.seed,
        "drop": cell.drop,
        "measure": "",
        "values": [],
        "rows": [],
        "bytes": 0,
        "gradients": 0,
        "seconds": 0.0,
        "words": json.dumps(chosen, sort_keys=True),
        **{name: nothing for name, (_, nothing) in (ADDED_COLUMNS | NEWCOMER_COLUMNS).items()},
        "newcomers": cell.newcomers,
    }
    if not isinstance(run, Run):
        return row
    spent = costs_of(run)
    came = _newcomer_columns_of(run) if cell.newcomers else {}
    return row | {
        "measure": run.measure,
        "values": run.client_values().tolist(),
        "rows": run.rows.tolist(),
        "bytes": int(spent.down.sum() + spent.up.sum()),
        "gradients": int(spent.gradients.sum()),
        "seconds": float(spent.seconds.sum()),
        "epoch": (epoch := _count_epoch_steps(run)),
        "course": _course_of(run, budgets),
        "equal": [] if base is None else _values_within(run, base - _tuning_epochs_of(row) * epoch),
        **came,
    }


def _count_epoch_steps(run: Run) -> int:
    """Steps of all clients in one epoch of their training rows."""
    batch = run.experiment.train.batch_size
    return sum(ceil(rows / batch) if batch else 1 for rows in run.about["rows"]["train"])


def _course_of(run: Run, budgets: Sequence[int]) -> list[dict[str, Any]]:
    """Every client's number after so many steps per round and client, where it was evaluated."""
    each = run.experiment.train.local_steps
    found = []
    for steps in budgets if each else ():
        at = values_of(run.table, run.measure, "test", round=steps // each)[1]
        found += [{"steps": steps, "values": at.tolist()}] if len(at) else []
    return found


def _values_within(run: Run, gradients: int) -> list[float]:
    """Every client's number in the last evaluated round by which so many gradients were taken; in
    the first one where that has more already.
    """
    spent = costs_of(run).sum()
    evaluated = curve_of(run.table, run.measure, "test")[0]
    within = spent.round[spent.gradients <= gradients]
    rounds = evaluated[evaluated <= (within.max() if len(within) else 0)]
    at = int(rounds[-1] if len(rounds) else evaluated[0])
    return list(map(float, values_of(run.table, run.measure, "test", round=at)[1]))


def _newcomer_columns_of(run: Run) -> dict[str, Any]:
    """How the newcomers of a run fared, way by way, and the method's rule if it has one."""
    came = run.came
    return {
        "newcomer_does": "" if came.rule == FINE_TUNE_RULE.rule else came.rule,
        **{f"newcomers_{way}": came.values(way).tolist() for way in WAYS},
    }


def write_results(results: ArenaResults, path: Path) -> None:
    """The results as a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = results.runs.replace_schema_metadata({ABOUT: json.dumps(results.about)})
    temporary = path.with_name(path.name + ".part")
    pq.write_table(table, temporary, compression="zstd", compression_level=19)
    move_into_place(temporary, path)


def read_results(path: Path) -> ArenaResults:
    """The results in a file."""
    try:
        table = pq.read_table(check_regular_file(path))
        about = json.loads(table.schema.metadata[ABOUT.encode()])
        for name, (kind, nothing) in (ADDED_COLUMNS | NEWCOMER_COLUMNS).items():
            if name not in table.column_names:
                table = table.append_column(name, pa.array([nothing] * len(table), kind))
        for one in about["federations"].values():  # which older files know for all alike
            one.setdefault("trials", about["trials"])
        return ArenaResults(table.select(RUNS.names).cast(RUNS), about)
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}: `coterie arena --write docs` makes it") from None
    except (pa.ArrowException, ValueError, LookupError, TypeError):
        raise BadInput(
            f"{path} holds no results of an arena: remove it, then `coterie arena --write docs` "
            "makes it from runs"
        ) from None


class Block(NamedTuple):
    """One number per federation and method; NaN where a method could not run or diverged."""

    federations: tuple[str, ...]
    methods: tuple[str, ...]
    values: np.ndarray  # [federations, methods]
    ran: np.ndarray  # [federations, methods] whether a method was tried there


def build_block(rows: Sequence[Row], value: Callable[[Row], float]) -> Block:
    """A number of each run averaged over seeds; methods that diverged with any seed have none.

    Where a method ran with some of a federation's seeds, these are compared with what they gave the
    methods that ran with all: what makes a seed easy for everybody is nobody's merit.
    """
    federations = tuple(dict.fromkeys(row["federation"] for row in rows))
    methods = tuple(dict.fromkeys(row["method"] for row in rows))
    shape = len(federations), len(methods)
    values, ran = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    for f, federation in enumerate(federations):
        mine = [row for row in rows if row["federation"] == federation]
        seeds = sorted({row["seed"] for row in mine})
        each = np.full((len(methods), len(seeds)), np.nan)
        tried = np.zeros(each.shape, dtype=bool)
        for row in mine:
            at = methods.index(row["method"]), seeds.index(row["seed"])
            each[at], tried[at] = value(row) if row["values"] else np.nan, True
        whole = np.isfinite(each).all(axis=1)
        easy = (
            each[whole].mean(axis=0) - each[whole].mean() if whole.any() else np.zeros(len(seeds))
        )
        for m in np.flatnonzero(tried.any(axis=1)):
            with_these = tried[m]
            moved = 0.0 if with_these.all() else easy[with_these].mean()
            values[f, m], ran[f, m] = each[m, with_these].mean() - moved, True
    return Block(federations, methods, values, ran)


def client_points_of(row: Row) -> np.ndarray:
    """[clients] what a run reached, in points: higher is better, 100 is the most.

    A share of explained variance below -1 counts as -1, so that one client does not decide alone.
    """
    return drop_nan(to_points(row, row["values"]))


def to_points(row: Row, values: Sequence[float]) -> np.ndarray:
    """Numbers of a run's measure in points, as `goodness` has them; NaN where there is none."""
    clipped = np.clip(np.asarray(values, dtype=float), -1, 1)
    found: np.ndarray = 100 * find_score(row["measure"]).sign * clipped
    return found


def select_runs(results: ArenaResults, drop: bool = False, newcomers: bool = False) -> list[Row]:
    """The runs in which everybody was there and answered; or those in which some did not answer,
    or those in which some came after training.
    """
    rows: list[Row] = results.runs.to_pylist()
    return [row for row in rows if (bool(row["drop"]), bool(row["newcomers"])) == (drop, newcomers)]


def gradients_of(row: Row) -> float:
    """Gradients of all clients in all rounds, and of the fine-tuning at the end, which no round
    holds.
    """
    return float(row["gradients"]) + _tuning_epochs_of(row) * row["epoch"]


def _tuning_epochs_of(row: Row) -> int:
    """Epochs of fine-tuning before use that were chosen for a run."""
    return int(json.loads(row["words"]).get("tune_epochs", 0))


def divide_by_fedavg(found: Block) -> np.ndarray:
    """[methods] a number in times of FedAvg's, mean over federations; NaN where it did not run."""
    if "fedavg" not in found.methods:
        return np.full(len(found.methods), np.nan)
    base = found.values[:, [found.methods.index("fedavg")]]
    return nan_mean(found.values / np.where(base > 0, base, np.nan), 0)


def arena_scores_of(results: ArenaResults) -> ArenaScores:
    """What a guide is made of: federations with their properties, methods with their points.

    Whoever knows the true groups is a bound, not a method to choose; a federation on which no
    method came to its end says nothing.
    """
    rows = [row for row in select_runs(results) if row["method"] not in BOUNDS]
    found = build_block(rows, lambda row: float(client_points_of(row).mean()))
    federations = results.about["federations"]
    kept = np.flatnonzero(~np.isnan(found.values).all(axis=1))
    names = tuple(found.federations[f] for f in kept)
    properties = [Properties(**federations[f]["properties"]) for f in names]
    return ArenaScores(
        federations=names,
        properties=np.array(properties, dtype=float).reshape(len(names), len(Properties._fields)),
        methods=found.methods,
        points=found.values[kept],
    )
