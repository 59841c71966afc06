"""The folder of a run: options (config.toml), what the run was (run.json), rows of each class
(split.parquet).
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, move_into_place, read_text, write_text
from coterie.core.model import Model
from coterie.core.quantities import LoggedQuantity, to_json
from coterie.core.version import __version__
from coterie.data.client_rows import counts_of
from coterie.data.federation import PARTS, Federation, checksum_of, count_labels, part_of
from coterie.data.newcomers import digest_partition
from coterie.experiment.config import Experiment
from coterie.experiment.stored import read_stored_experiment
from coterie.experiment.toml import to_toml
from coterie.results.about import CHECKSUM, check_about, checksum_about

CONFIG, ABOUT, METRICS, SPLIT = "config.toml", "run.json", "metrics.parquet", "split.parquet"
MAX_NAMED = 6  # named in a line
RUNS = Path("runs")  # where runs lie unless somebody says otherwise
UNSAFE = re.compile(r"[\x00-\x1f/\\:]")  # in no name of a folder
MAX_FOLDER_NAME = 100  # letters
LIBRARIES = ("torch", "numpy", "scikit-learn", "scipy", "pyarrow", "safetensors")


def read_status(folder: Path) -> str:
    """How far a run has come: "", "running" (or stopped), "finished" or "diverged"."""
    return str(read_about(folder).get("status")) if (folder / ABOUT).exists() else ""


def read_about(folder: Path) -> dict[str, Any]:
    """What a run was: see write_about."""
    try:
        known = json.loads(read_text(folder / ABOUT))
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(_explain_no_run(folder, ABOUT)) from None
    except BadInput:
        raise
    except (ValueError, RecursionError):
        raise BadInput(
            f"{folder / ABOUT} is damaged: restore it from a copy, or run again"
        ) from None
    return check_about(known, folder / ABOUT)


def _explain_no_run(folder: Path, lacks: str) -> str:
    """What a path is that is not the folder of a run."""
    if folder.is_file():
        return f"{folder} is a file: give the folder of a run, which `coterie run` writes"
    if not folder.is_dir():
        return f"there is no folder {folder}"
    inside = sorted(str(path) for path in folder.iterdir() if (path / ABOUT).is_file())
    if inside:
        more = f" and {len(inside) - MAX_NAMED} more" * (len(inside) > MAX_NAMED)
        return f"{folder} holds several runs: give one, {', '.join(inside[:MAX_NAMED])}{more}"
    return f"{folder} is not the folder of a run: it has no {lacks}"


def read_experiment(folder: Path) -> Experiment:
    """The options a run was started with, every default filled in; its method and network need not
    be known here.
    """
    if not (folder / CONFIG).exists():
        raise BadInput(_explain_no_run(folder, CONFIG))
    return read_stored_experiment(folder / CONFIG)


def write_config(folder: Path, experiment: Experiment) -> None:
    """The options of a run, so that `coterie run --config` does it again."""
    write_text(folder / CONFIG, to_toml(experiment.to_dict()))


def describe_environment() -> dict[str, Any]:
    """With what, on which machine and when something is computed."""
    return {
        "coterie": __version__,
        "versions": {name: _version_of(name) for name in LIBRARIES},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_about(
    folder: Path,
    federation: Federation,
    models: Sequence[Model],
    architecture: np.ndarray,
    describes: Mapping[str, LoggedQuantity],
    status: str,
    more: Mapping[str, Any] | None = None,  # of this run alone, as where it branched off
) -> dict[str, Any]:
    """What a run was, for whoever finds the folder: versions, machine, data, and whether it is
    finished.
    """
    known = {
        "status": status,
        **describe_environment(),
        "data": checksum_of(federation),
        "partition": digest_partition(federation),
        "clients": federation.names,
        "rows": {part: counts_of(part_of(federation, part)).tolist() for part in PARTS},
        "groups": np.asarray(federation.groups).tolist(),
        "classes": federation.classes,
        "labels": federation.labels,
        "task": federation.target.task,
        "models": describe_networks(models),
        "architecture": architecture.tolist(),
        "input_shape": list(federation.input_shape),
        "notes": to_json(describes),
        **(more or {}),
    }
    known[CHECKSUM] = checksum_about(known)
    write_text(folder / ABOUT, json.dumps(known, indent=1))
    return known


def write_split(folder: Path, federation: Federation) -> None:
    """How many rows of each class every client holds, where there are classes."""
    if federation.classes and len(federation.y):  # a server of real sites has no labels
        write_table(count_labels(federation), folder / SPLIT)


def write_table(table: pa.Table, path: Path) -> None:
    temporary = path.with_suffix(".part")
    with catch_write_errors(path.parent):
        pq.write_table(table, temporary, compression="zstd")
        move_into_place(temporary, path)


def describe_networks(models: Sequence[Model]) -> list[dict[str, Any]]:
    """The architectures of a run."""
    return [
        {"name": m.name, "parameters": m.size}
        | ({"frozen": sum(t.numel() for t in m.frozen.values())} if m.frozen else {})
        for m in models
    ]


@cache
def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


@contextmanager
def make_run_folder(out: Path | None, name: str) -> Iterator[Path]:
    """The folder `out`; without one a new folder in runs/ that says what and when, made at once so
    that no other process takes it, and removed where nothing was written.
    """
    if out is not None:
        yield out
        return
    first = RUNS / _name_by_time(name)
    new = not RUNS.exists()
    with catch_write_errors(first):
        folder = next(path for path in _number_paths(first) if _is_made(path))
    try:
        yield folder
    finally:
        with suppress(OSError):  # there is something in it
            folder.rmdir()
            if new:
                RUNS.rmdir()


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def name_run_folder(base: Path, name: str, taken: Callable[[Path], bool] = Path.exists) -> Path:
    """An unused folder name that says what and when."""
    return find_unused(base / _name_by_time(name), taken)


def _name_by_time(name: str) -> str:
    plain = UNSAFE.sub("_", name)[:MAX_FOLDER_NAME]
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}"


def find_unused(first: Path, taken: Callable[[Path], bool] = Path.exists) -> Path:
    """The folder itself where there is none of its name, else the first free number after it."""
    return next(path for path in _number_paths(first) if not taken(path))


def _number_paths(first: Path) -> Iterator[Path]:
    yield first
    yield from (first.with_name(f"{first.name}-{k}") for k in itertools.count(2))
