"""What this machine has for runs: versions, cores, compiler, device, cache and data."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from coterie.core.device import AUTO, ISA, avoid_broken_amx, device_of
from coterie.core.memory import read_memory_limit
from coterie.core.version import __version__
from coterie.data.read.archives import data_folder
from coterie.data.read.catalog import BUILT_IN, DATASETS, ELSEWHERE
from coterie.engines.local.native.compiler import FLAGS, ask_version, compile_source, find_compiler
from coterie.engines.local.native.library_cache import find_cache_fault
from coterie.engines.local.timing_cache import cache_folder
from coterie.engines.local.tracing import Untraceable

SHOWN = ("torch", "numpy", "flwr", "ray")  # beside Python and Coterie
BOUNDS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # variables that bound torch's threads
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # what a container may use: microseconds of so many
TRIAL = "int run(void) { return 0; }"


def gather_facts() -> dict[str, Any]:
    """What is known of this machine, for people and programs alike."""
    avoid_broken_amx()
    return {
        "versions": {
            "coterie": __version__,
            "python": platform.python_version(),
            **{name: find_version(name) for name in SHOWN},
        },
        "machine": _look_at_machine(),
        "threads": {
            "torch": torch.get_num_threads(),
            "bounds": {name: os.environ[name] for name in BOUNDS if os.environ.get(name)},
        },
        "compiler": _try_compiler(),
        "device": {
            "auto": str(device_of(AUTO)),
            "cuda_build": torch.version.cuda or "",
            "nvidia": shutil.which("nvidia-smi") is not None,
            "bfloat16_bound": os.environ.get(ISA, ""),
        },
        "cache": _look_at_cache(),
        "data": _look_at_data(),
    }


def find_version(name: str) -> str:
    """The version of a package; "" where it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _look_at_machine() -> dict[str, Any]:
    """Cores that this process may use, how busy they are, and its memory."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        "quota": read_quota(QUOTA),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0,
        "memory_gb": round(read_memory_limit() / 2**30, 1),
    }


def read_quota(path: Path) -> float | None:
    """Cores' worth of time that a container may use; None: no bound is known."""
    try:
        used, _, period = path.read_text(encoding="utf-8").partition(" ")
        return round(int(used) / int(period), 2)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _try_compiler() -> dict[str, Any]:
    """The C compiler, and why it makes no machine code; "" where it does."""
    command = " ".join(find_compiler())
    if not command:
        return {"command": "", "version": "", "problem": "there is no C compiler here"}
    try:
        compile_source(TRIAL, FLAGS)
        problem = ""
    except Untraceable as why:
        problem = " ".join(str(why).split())
    return {"command": command, "version": ask_version(), "problem": problem}


def _look_at_cache() -> dict[str, Any]:
    """What timing has found and what was compiled; nothing is made by looking."""
    folder = cache_folder().parent
    sizes = list(_list_sizes(folder))
    near = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return {
        "folder": str(folder),
        "files": len(sizes),
        "megabytes": round(sum(sizes) / 2**20, 1),
        "writable": os.access(near, os.W_OK),
        "fault": find_cache_fault(),
    }


def _list_sizes(folder: Path) -> Iterator[int]:
    """The bytes of every file; one that goes meanwhile counts for nothing."""
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path.stat().st_size
        except OSError:
            continue


def _look_at_data() -> dict[str, Any]:
    """Which data sets are at hand: files that lie in their folder are not read here."""
    folder = data_folder()
    there = [name for name in DATASETS if name in BUILT_IN or _has_files(folder, name)]
    return {
        "folder": str(folder),
        "from": "COTERIE_DATA" if os.environ.get("COTERIE_DATA") else "",
        "exists": folder.is_dir(),
        "there": there,
        "absent": [name for name in DATASETS if name not in there],
    }


def _has_files(folder: Path, name: str) -> bool:
    place, files = ELSEWHERE.get(name, (name, "*"))
    return any(path.is_file() for path in (folder / place).rglob(files))
