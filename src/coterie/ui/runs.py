"""The runs and comparisons under one folder: what each is and how far it has come, read again only
where files have changed.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from shlex import quote as quoted
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from coterie.comparison.plan import FILE as PLAN
from coterie.core.errors import BadInput, format_value
from coterie.core.files import read_text
from coterie.core.option_names import rename_tables
from coterie.experiment.config import PYTHON
from coterie.results.folder import ABOUT, CONFIG, METRICS
from coterie.running.progress import FILE as PROGRESS
from coterie.running.progress import LOCK, is_busy
from coterie.ui.curves import check_metrics, read_last_metrics
from coterie.ui.flat_config import flatten_config, group_of
from coterie.ui.progress_file import read_ends

# a folder whose watched files have not changed is not read again
WATCHED = (CONFIG, ABOUT, METRICS, PROGRESS, PLAN)
FRESH_SECONDS = 0.5  # seconds a listing serves everyone who asks
REST_FACTOR = 4  # or so many times what the listing took, if that is more
SCAN_SECONDS = 1.0  # seconds spent on folders not read before; the rest is read next time
MIN_FOLDERS = 200  # folders read in any case
SILENT_SECONDS = 5.0  # seconds without a word before a run with a lock may be called stopped
LOCKLESS_SECONDS = 300.0  # the same without a lock to ask
MAX_DEPTH = 3  # folders below the given one that may hold runs

TIMED = re.compile(r"\d{8}-\d{6}-")  # a folder that a command named after the time

READ_ERRORS = (ArithmeticError, RecursionError, MemoryError, pa.ArrowException)

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
Mark = tuple[tuple[str, int, int], ...]  # (file, time of change, size)


class Entry(NamedTuple):
    """A run or comparison as the list shows it."""

    id: str  # path from the given folder, percent-encoded: the only name a request may call it by
    path: Path
    kind: str  # "run" or "comparison"
    # "running", "finished", "diverged", "stopped" or "damaged"; "unread" for a moment in a large
    # folder
    status: str
    parent: str = ""  # id of the comparison it belongs to
    why: str = ""  # what is damaged, or how to go on
    method: str = ""
    data: str = ""
    seed: int | None = None
    part: str = ""  # that the accuracy of a round is measured on
    done: int = 0  # rounds
    rounds: int = 0
    accuracy: float | None = None
    loss: float | None = None
    changed: float = 0.0
    started: float | None = None
    pace: float | None = None  # seconds per round, evaluation included
    planned: int = 0  # runs of a comparison
    title: str = ""  # data and methods, where the folder has a name that a command gave it
    per_run: int = 0  # rounds of each run of a comparison
    measure: str = "accuracy"  # what the run is judged by
    value: float | None = None  # of that, at the last evaluation
    group: str = ""  # the same for runs that differ in nothing but the seed
    settings: Mapping[str, Any] = NO_OPTIONS  # of its configuration


class UnknownRun(BadInput):
    """A request named what is not in the list."""


class Library:
    """All entries under a folder; many may ask at once."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self._lock, self._cache = Lock(), dict[Path, tuple[Mark, Entry]]()
        self._due, self._entries = 0.0, dict[str, Entry]()

    def entries(self) -> dict[str, Entry]:
        """Every entry by its id; a comparison stands before its runs."""
        with self._lock:
            begin = time.monotonic()
            if begin >= self._due:
                self._entries = self._scan()
                end = time.monotonic()
                unread = any(e.status == "unread" for e in self._entries.values())
                self._due = end + (0 if unread else max(FRESH_SECONDS, REST_FACTOR * (end - begin)))
            return self._entries

    def find(self, ids: Iterable[str]) -> list[Entry]:
        """The entries of these ids."""
        known = self.entries()
        for name in ids:
            if name not in known:
                raise UnknownRun(
                    f"there is no run '{name}' here: it was moved or deleted, or never was"
                )
        return [known[name] for name in ids]

    def runs(self, ids: Iterable[str]) -> list[Entry]:
        """The runs of these ids; a comparison stands for all of its own, without those that tuned
        it.
        """
        chosen = {}
        for entry in self.find(ids):
            inner = (
                e
                for e in self.entries().values()
                if e.parent == entry.id and e.path.parent == entry.path
            )
            for run in [entry] if entry.kind == "run" else inner:
                chosen[run.id] = run
        return list(chosen.values())

    def _scan(self) -> dict[str, Entry]:
        now, found, kept = time.time(), dict[str, Entry](), dict[Path, tuple[Mark, Entry]]()
        end, read = time.monotonic() + SCAN_SECONDS, 0
        for folder, files, comparison in _walk(self.root, MAX_DEPTH):
            mark = tuple((e.name, s.st_mtime_ns, s.st_size) for e in files if (s := _stat(e)))
            old = self._cache.get(folder)
            if old and old[0] == mark:
                entry = old[1]
            elif read < MIN_FOLDERS or time.monotonic() < end:
                entry, read = _read(self.root, folder, files), read + 1
            else:
                mark, entry = (), _unread_entry(self.root, folder, files)._replace(status="unread")
            kept[folder] = (mark, entry)
            found[entry.id] = _settle(entry, now)._replace(
                parent=id_of(self.root, comparison) if comparison else ""
            )
        self._cache = kept
        families: dict[str, list[Entry]] = {}
        for entry in found.values():
            families.setdefault(entry.parent, []).append(entry)
        whole = {
            k: _summarize_runs(e, families.get(k, []), now) if e.kind == "comparison" else e
            for k, e in found.items()
        }
        return dict(sorted(whole.items()))


def _walk(
    folder: Path, depth: int, comparison: Path | None = None
) -> Iterator[tuple[Path, list[os.DirEntry], Path | None]]:
    """(folder, watched files, comparison around it) of every run and comparison; no link is
    followed.
    """
    try:
        with os.scandir(folder) as listing:
            inside = sorted(
                listing, key=lambda e: e.name, reverse=True
            )  # names begin with the time: the newest first
    except OSError:  # gone meanwhile, or not ours to read
        return
    files = [e for e in inside if e.name in WATCHED]
    names = {e.name for e in files}
    if PLAN in names:
        yield folder, files, comparison
        comparison, depth = folder, max(depth, 3)  # tuning/METHOD/try1-seed0
    elif ABOUT in names or (CONFIG in names and names & {PROGRESS, METRICS}):
        yield folder, files, comparison
        return
    for e in inside if depth else ():
        if e.is_dir(follow_symlinks=False) and not e.name.startswith("."):
            yield from _walk(folder / e.name, depth - 1, comparison)


def _stat(entry: os.DirEntry) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:
        return None


def id_of(root: Path, folder: Path) -> str:
    """The name that requests call a folder by."""
    return quote(os.fsencode(folder.relative_to(root)), safe="/@")


def _unread_entry(root: Path, folder: Path, files: list[os.DirEntry]) -> Entry:
    """What is known of a folder without a look into its files."""
    kind = "comparison" if any(e.name == PLAN for e in files) else "run"
    changed = max((s.st_mtime for e in files if (s := _stat(e))), default=0.0)
    return Entry(id_of(root, folder), folder, kind, "damaged", changed=changed)


def _read(root: Path, folder: Path, files: list[os.DirEntry]) -> Entry:
    """What a folder says of itself, whatever state its files are in."""
    entry = _unread_entry(root, folder, files)
    for e in files:
        if e.is_symlink():
            return entry._replace(
                why=f"{e.name} is a link: coterie ui reads only what lies in the folder itself"
            )
        if not e.is_file():  # to open a pipe would wait for ever
            return entry._replace(why=f"{e.name} is not a file: move it away")
    try:
        return _read_comparison(entry) if entry.kind == "comparison" else _read_run(entry)
    except BadInput as damage:
        return entry._replace(why=str(damage))
    except FileNotFoundError as missing:
        return entry._replace(why=f"{Path(missing.filename).name} is missing")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, *READ_ERRORS) as damage:
        return entry._replace(
            why=f"{folder.name} cannot be read: {' '.join(str(damage).split())[:200]}"
        )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except BadInput as damage:
        said = str(damage).replace(str(path), "it")
        raise BadInput(f"{path.name} is damaged: {said}") from None
    except RecursionError:
        raise BadInput(f"{path.name} is damaged: it is nested too deep") from None
    except (ValueError, OverflowError) as damage:
        raise BadInput(f"{path.name} is damaged: {' '.join(str(damage).split())}") from None


def _read_run(entry: Entry) -> Entry:
    folder = entry.path
    config = rename_tables(_read_toml(folder / CONFIG))
    schedule = config.get("schedule", {})
    parts = schedule.get("parts") or ["validation"]
    settings, data = flatten_config(config), _dataset_name(config)
    first, last, pace = read_ends(folder / PROGRESS)
    entry = entry._replace(
        method=str(config["method"]),
        data=data,
        title=f"{Path(data).name}: {config['method']}" if TIMED.match(folder.name) else "",
        seed=_check_whole(config.get("seed", 0), "seed"),
        part="validation" if "validation" in parts else str(parts[-1]),
        rounds=int(last.get("rounds") or _check_whole(schedule.get("rounds", 0), "rounds")),
        done=int(last.get("round") or 0),
        accuracy=last.get("accuracy"),
        loss=last.get("loss"),
        measure=str(last.get("measure") or "accuracy"),
        value=last.get("value"),
        group=group_of(settings),
        settings=settings,
        started=first["time"] - (first.get("seconds") or 0) if first.get("time") else None,
        pace=pace,
    )
    try:
        about = json.loads(read_text(folder / ABOUT))
        status = about["status"]
    except BadInput:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{ABOUT} is damaged: restore it from a copy, or run again") from None
    if status == "diverged":
        return entry._replace(status="diverged", why=_why_diverged(about))
    if status != "finished":
        return entry._replace(status="running")
    check_metrics(folder / METRICS)
    if not last:  # no line was ever written, as by an early version
        done, accuracy, loss = read_last_metrics(folder / METRICS, entry.part)
        entry = entry._replace(done=done, rounds=done, accuracy=accuracy, loss=loss)
    return entry._replace(
        status="finished", changed=datetime.fromisoformat(about["date"]).timestamp()
    )


def _why_diverged(about: dict[str, Any]) -> str:
    try:
        return str(about["diverged"]["why"])[:500]
    except (KeyError, TypeError):
        raise BadInput(f"{ABOUT} is damaged: it does not say why the run diverged") from None


def _read_comparison(entry: Entry) -> Entry:
    plan = rename_tables(_read_toml(entry.path / PLAN))
    methods, seeds = plan["methods"], plan["seeds"]
    rounds = _check_whole(plan.get("schedule", {}).get("rounds", 0), "rounds")
    data, count = _dataset_name(plan), f"{len(methods)} methods"
    return entry._replace(
        status="running",
        method=", ".join(map(str, methods)),
        data=data,
        rounds=rounds * len(methods) * len(seeds),
        planned=len(methods) * len(seeds),
        title=f"{Path(data).name}: {count}" if TIMED.match(entry.path.name) else "",
        per_run=rounds,
    )


def _check_whole(value: Any, option: str) -> int:
    if type(value) is not int or not 0 <= value < 2**32:
        raise BadInput(f"{option} = {format_value(value)}, no whole number: the file is damaged")
    return value


def _settle(entry: Entry, now: float) -> Entry:
    """A run that calls itself running is stopped when it has been silent and nobody works on it."""
    if entry.kind == "comparison" or entry.status != "running":
        return entry
    locked = (entry.path / LOCK).exists()
    silent = now - entry.changed > max(
        SILENT_SECONDS if locked else LOCKLESS_SECONDS, 5 * (entry.pace or 0)
    )
    if not silent or _is_busy(entry.path):
        return entry
    return entry._replace(status="stopped", why=f"coterie resume {quoted(str(entry.path))}")


def _is_busy(folder: Path) -> bool:
    try:
        return is_busy(folder)
    except OSError:  # a folder that is not ours to write
        return False


def _summarize_runs(entry: Entry, inner: list[Entry], now: float) -> Entry:
    """A comparison as the sum of its runs."""
    if entry.status != "running":
        return entry
    runs = [e for e in inner if e.path.parent == entry.path]
    planned, ended = entry.planned, sum(e.status in ("finished", "diverged") for e in runs)
    lost = sum(e.status == "diverged" for e in runs)
    hurt = [e for e in runs if e.status == "damaged"]
    changed = max([entry.changed, *(e.changed for e in inner)])
    said = f"{ended - lost} of {planned} runs finished" + (f", {lost} diverged" if lost else "")
    if any(e.status == "running" for e in inner):
        status = "running"
    elif ended >= planned:
        status = "finished"
        said = f"{planned} runs" + (f", of which {lost} diverged" if lost else "")
    elif hurt:
        status, said = "damaged", f"{hurt[0].path.name}: {hurt[0].why}"
    elif now - changed < 60:  # the next run's data are being made
        status = "running"
    else:
        status, said = "stopped", f"coterie resume {quoted(str(entry.path))}"
    known = sum(e.rounds for e in runs)
    rounds = known + entry.rounds * max(planned - len(runs), 0) // planned if planned else known
    return entry._replace(
        status=status, why=said, done=sum(e.done for e in runs), rounds=rounds, changed=changed
    )


def find_stray_link(folder: Path, root: Path) -> Path | None:
    """A link somewhere in a run's folder that leads out of `root`, if there is one."""
    links = (path for path in _walk_paths(folder) if path.is_symlink())
    return next((p for p in links if not p.resolve().is_relative_to(root)), None)


def find_special_file(folder: Path) -> Path | None:
    """What is neither a file nor a folder in a run's folder, such as a pipe, if there is any."""
    return next(
        (p for p in _walk_paths(folder) if p.exists() and not (p.is_file() or p.is_dir())), None
    )


def _walk_paths(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def _dataset_name(settings: dict[str, Any]) -> str:
    """What the data are called; those given as Python objects by their own name."""
    return str(settings.get("dataset", {}).get("name", "")).removeprefix(PYTHON)
