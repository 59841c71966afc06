"""Machine code of a step: compiled by the C compiler of this machine, and found again later."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

from coterie.engines.local.timing_cache import cache_folder
from coterie.engines.local.tracing import Untraceable

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
FLAGS += ["-fopenmp-simd", "-fPIC", "-shared", "-w"]
QUICK = "-O1"  # of code that runs a few times, to be compared with
HEADERS = ("real.h", "products.h", "functions.h", "convolutions.h", "pools.h")
TIMEOUT = 300  # after which a compiler is given up


@cache
def find_compiler() -> tuple[str, ...]:
    """The command of a C compiler; () where there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return (found,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else ()


@cache
def _describe_machine() -> str:
    """What machine code depends on beside its source."""
    told = subprocess.run(
        [*find_compiler(), "--version"], capture_output=True, text=True, check=False
    )
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        kept = [line for line in about.splitlines() if line.startswith(("flags", "model name"))]
    except OSError:
        kept = [platform.processor()]
    return "\n".join([told.stdout.partition("\n")[0], platform.machine(), *kept, *FLAGS])


@cache
def read_header(name: str) -> str:
    """The text of one of our C headers."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def read_kernels() -> str:
    """Products of small matrices, functions of numbers, and operations on images."""
    return "\n".join(map(read_header, HEADERS))


def find_library(body: str, double: bool = False) -> Path:
    """Where the compiled form of some C lies, or will; it computes in double precision if so
    asked.
    """
    name = hashlib.sha256((_put_together(body, double) + _describe_machine()).encode()).hexdigest()[
        :32
    ]
    return cache_folder().parent / "steps" / f"{name}.so"


def _put_together(body: str, double: bool) -> str:
    return "\n".join([f"#define DOUBLE {int(double)}", read_kernels(), body])


def load_library(body: str, double: bool = False) -> ctypes.CDLL:
    """The library of some C; Untraceable where it cannot be had."""
    if not find_compiler():
        raise Untraceable("there is no C compiler here; gcc, clang or the package ziglang has one")
    place = find_library(body, double)
    for _ in range(2):  # a file that cannot be loaded is made anew
        if not place.exists():
            place = _compile_into(place, _put_together(body, double), FLAGS)
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            place.unlink(missing_ok=True)
    raise Untraceable(f"{place} cannot be loaded")


def load_once(body: str, double: bool) -> ctypes.CDLL:
    """The library of some C that is compiled quickly, runs a few times and is not kept."""
    flags = [QUICK if flag == "-O3" else flag for flag in FLAGS]
    with tempfile.TemporaryDirectory() as here:
        place = Path(here) / "once.so"
        return ctypes.CDLL(str(_compile_into(place, _put_together(body, double), flags)))


def _compile_into(place: Path, source: str, flags: list[str]) -> Path:
    """Compile into the cache, or into a folder of this process where it cannot be written."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(dir=place.parent)
    except OSError:
        made = tempfile.mkdtemp()
        place = Path(made) / place.name
    here = Path(made)
    try:
        (here / "step.c").write_text(source, encoding="utf-8")
        command = [*find_compiler(), *flags, "-o", "step.so", "step.c", "-lm"]
        done = subprocess.run(
            command, cwd=here, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        if done.returncode:
            raise Untraceable(f"the C compiler said: {done.stderr.strip()[:300]}")
        (here / "step.so").replace(place)  # whole or not at all, whoever else compiles the same
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Untraceable(f"the C compiler failed: {problem}") from problem
    finally:
        (here / "step.c").unlink(missing_ok=True)
        if here != place.parent:
            shutil.rmtree(here, ignore_errors=True)
    return place
