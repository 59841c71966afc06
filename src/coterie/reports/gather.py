"""Reads folders for a report; what cannot be read is left out, and one line says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from coterie.comparison.plan import FILE, read_plan
from coterie.core.errors import BadInput
from coterie.core.version import __version__
from coterie.reports.evidence import Evidence, RunRecord, split_columns
from coterie.results.about import CHECKSUMS
from coterie.results.data_files import find_damaged
from coterie.results.folder import ABOUT, CONFIG, METRICS, read_about
from coterie.results.run import load_run

# of run.json
REQUIRED_KEYS = (
    "status",
    "data",
    "clients",
    "rows",
    "groups",
    "classes",
    "models",
    "coterie",
)
READ_ERRORS = (ValueError, ArithmeticError, RecursionError, pa.ArrowException)
MAX_LISTED = 3  # names spelled out in a warning


def gather_evidence(paths: Sequence[str | Path]) -> Evidence:
    """The runs in folders of runs and comparisons; bad input only where none can be used."""
    if not paths:
        raise BadInput(
            "a report of nothing: name at least one folder of a run or comparison, as in "
            "`coterie report runs/...`"
        )
    warnings: list[str] = []
    read: list[tuple[str, RunRecord]] = []
    places: dict[Path, str] = {}
    for path in map(Path, paths):
        for name, folder in _find_candidates(path, warnings):
            places.setdefault(folder.resolve(), name)
    diverged = _find_diverged(places)
    for folder, name in places.items():
        if (name or folder.name) in diverged:
            continue
        try:
            record = _read_record(folder)
        except BadInput as problem:
            warnings.append(
                f"{folder.name} is left out: {str(problem).replace(str(folder), folder.name)}"
            )
            continue
        read.append((name or record.run.name, record))
    if not read:
        warnings += [f"{name} diverged ({why})" for name, why in diverged.items()]
        raise BadInput(f"no run can be read: {'; '.join(warnings)}")
    records = _align_seeds(_group_runs(_keep_comparable(read, warnings)), warnings)
    seeds = [r.run.experiment.seed for r in next(iter(records.values()))]
    for name, runs in records.items():
        warnings += [_describe_run(name, record, records) for record in runs]
    return Evidence(records, seeds, [w for w in warnings if w], diverged)


def _find_diverged(places: Mapping[Path, str]) -> dict[str, str]:
    """{method, or folder of a run by itself: why it diverged}; with any seed is enough."""
    found: dict[str, str] = {}
    for folder, name in places.items():
        try:
            facts = read_about(folder)
            if facts.get("status") == "diverged":
                found.setdefault(name or folder.name, f"{folder.name}: {facts['diverged']['why']}")
        except (BadInput, OSError, KeyError, TypeError):
            continue  # whatever is wrong is said when the run is read
    return found


def _find_candidates(path: Path, warnings: list[str]) -> list[tuple[str, Path]]:
    """(name in the comparison or "", folder) of every run a path stands for."""
    if not path.is_dir():
        file = f"{path} is a file: give the folder of a run or comparison"
        warnings.append(file if path.is_file() else f"there is no folder {path}")
    elif (path / FILE).exists():
        try:
            plan = read_plan(path / FILE)
        except BadInput as problem:
            warnings.append(f"{problem}; the runs beside it are read all the same")
            inside = sorted(p for p in path.glob("*-seed*") if p.is_dir())
            return [(p.name.rpartition("-seed")[0], p) for p in inside]
        wanted = [
            (name, path / f"{name}-seed{seed}") for name in plan.experiments for seed in plan.seeds
        ]
        missing = [folder.name for _, folder in wanted if not (folder / ABOUT).exists()]
        if missing:
            warnings.append(
                f"{path.name}: {len(missing)} of {len(wanted)} runs have not begun: "
                f"{_list_some(missing)}"
            )
        return [(name, folder) for name, folder in wanted if folder.name not in missing]
    elif (path / ABOUT).exists() or (path / CONFIG).exists():
        return [("", path)]
    else:
        runs = sorted(p for p in path.iterdir() if (p / ABOUT).exists() or (p / FILE).exists())
        hint = (
            f"give a folder in it, such as {runs[0]}"
            if runs
            else f"it has neither {ABOUT} nor {FILE}"
        )
        warnings.append(f"{path} is not the folder of a run or comparison: {hint}")
    return []


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_LISTED]) + (
        f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    )


def _read_record(folder: Path) -> RunRecord:
    try:
        run = load_run(folder)
        lacks = [option for option in REQUIRED_KEYS if option not in run.about]
        if lacks:
            raise BadInput(
                f"{folder / ABOUT} lacks {', '.join(lacks)}: it is damaged or of another version"
            )
        known = run.about.get(CHECKSUMS, {})
        if damage := find_damaged(folder, {k: v for k, v in known.items() if k == METRICS}):
            raise BadInput(f"{damage}: restore it from a copy, or run again")
        record = RunRecord(run, split_columns(run.table))
        _ = record.describes  # a declaration that cannot be read is said now
        found = record.last(run.measure, run.part, "personal")
    except BadInput:
        raise
    except (LookupError, TypeError, AttributeError, OSError, *READ_ERRORS) as damage:
        what = f"{type(damage).__name__}: {' '.join(str(damage).split())[:200]}"
        raise BadInput(
            f"{folder} is damaged ({what}): restore it from a copy, or run again"
        ) from None
    if np.isnan(found).all():
        raise BadInput(
            f"{folder} has no {run.part} {run.measure} of any client yet: wait for its first "
            "evaluation"
        )
    return record


def _keep_comparable(
    read: list[tuple[str, RunRecord]], warnings: list[str]
) -> list[tuple[str, RunRecord]]:
    """Those with the data, clients and measured part that most others of their seed have."""

    def kind(record: RunRecord) -> tuple[int, int, str]:
        return record.clients, record.run.about["classes"], record.run.part

    def left_out(record: RunRecord, why: str) -> None:
        warnings.append(f"{record.run.folder.name} is left out: {why}")

    usual = Counter(kind(r) for _, r in read).most_common(1)[0][0]
    data: dict[int, Counter[str]] = {}
    for _, r in read:
        if kind(r) == usual:
            data.setdefault(r.run.experiment.seed, Counter())[r.run.about["data"]] += 1
    kept = []
    for name, r in read:
        settings = "{} clients, {} classes, measured on the {} part"
        if kind(r) != usual:
            left_out(
                r, f"it has {settings.format(*kind(r))}; the rest have {settings.format(*usual)}"
            )
        elif r.run.about["data"] != data[r.run.experiment.seed].most_common(1)[0][0]:
            left_out(
                r,
                "its data or split are not those of the other runs with seed "
                f"{r.run.experiment.seed}; report it alone",
            )
        else:
            kept.append((name, r))
    return kept


def _group_runs(read: list[tuple[str, RunRecord]]) -> dict[str, dict[int, RunRecord]]:
    """Runs that differ in nothing but the seed go together; others are told apart by folder."""
    found: dict[str, dict[int, RunRecord]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, record in read:
        own = {
            k: v
            for k, v in record.run.experiment.to_dict().items()
            if k not in ("seed", "engine", "keep")
        }
        seed, folder = record.run.experiment.seed, record.run.folder
        for label in (
            name,
            f"{name} ({folder.name})",
            f"{name} ({folder.parent.name}/{folder.name})",
            f"{name} ({folder})",
        ):
            if label not in found or (settings[label] == own and seed not in found[label]):
                found.setdefault(label, {})[seed] = record
                settings.setdefault(label, own)
                break
    return found


def _align_seeds(
    found: dict[str, dict[int, RunRecord]], warnings: list[str]
) -> dict[str, list[RunRecord]]:
    """Every method with the same seeds, so that all figures speak of the same data."""
    votes = Counter(seed for runs in found.values() for seed in runs)
    most = max(votes, key=lambda seed: (votes[seed], -seed))
    for name in [name for name, runs in found.items() if most not in runs]:
        seeds = ", ".join(map(str, sorted(found.pop(name))))
        warnings.append(
            f"{name} is left out: it has seed {seeds}, the others seed {most}; run it with "
            "that seed too"
        )
    common = sorted(set.intersection(*(set(runs) for runs in found.values())))
    for seed in sorted(set(votes) - set(common)):
        lacking = [name for name, runs in found.items() if seed not in runs]
        if any(seed in runs for runs in found.values()):
            warnings.append(
                f"seed {seed} is left out: {_list_some(lacking)} "
                f"{'has' if len(lacking) == 1 else 'have'} no run with it"
            )
    return {name: [runs[seed] for seed in common] for name, runs in found.items()}


def _describe_run(name: str, record: RunRecord, records: Mapping[str, list[RunRecord]]) -> str:
    """What a reader must know of a run that is shown all the same."""
    about, schedule = record.run.about, record.run.experiment.schedule
    usual = Counter(
        r.run.experiment.schedule.rounds for runs in records.values() for r in runs
    ).most_common(1)[0][0]
    said = [
        f"lacks {file}, which is damaged or gone: restore it from a copy, or run again"
        for file in record.damage
    ]
    if not record.finished:
        said.append(
            f"is not finished: shown as it stood at round {record.round:,} of {schedule.rounds:,}"
        )
    if schedule.rounds != usual:
        said.append(f"had {schedule.rounds:,} rounds where most had {usual:,}: not the same budget")
    if about["coterie"] != __version__:
        said.append(
            f"was made by coterie {about['coterie']}, this report by {__version__}: their "
            "numbers may differ"
        )
    return f"{name}, {record.run.folder.name}, {'; it '.join(said)}" if said else ""
