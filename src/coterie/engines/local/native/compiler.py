"""Machine code of a step: compiled by the C compiler of this machine, and found again later."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NoReturn

from coterie.engines.local.native import library_cache
from coterie.engines.local.tracing import Untraceable

FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
FLAGS += ["-fopenmp-simd", "-shared", "-w"]
# Windows has neither: its code moves freely, and mathematics is in its C library
FLAGS += [] if os.name == "nt" else ["-fPIC"]
LIBRARIES = [] if os.name == "nt" else ["-lm"]
QUICK = "-O1"  # of code that runs a few times, to be compared with
HEADERS = ("real.h", "products.h", "functions.h", "convolutions.h", "pools.h", "rows.h")
TIMEOUT, VERSION_TIMEOUT = 300.0, 60.0  # seconds after which a compiler is given up


@cache
def find_compiler() -> tuple[str, ...]:
    """The command of a C compiler; () where there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return (found,)
    return (sys.executable, "-m", "ziglang", "cc") if importlib.util.find_spec("ziglang") else ()


@cache
def ask_version() -> str:
    """What the compiler says of itself; "" where it says nothing in time."""
    try:
        _, said = _run([*find_compiler(), "--version"], Path.cwd(), VERSION_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.partition("\n")[0]


def _run(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """The exit code of a command and what it said; no child of it outlives its time."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except BaseException:  # the time is up, or the user has stopped it
            kill_group(process)
            raise
    return process.returncode, said


def kill_group(process: subprocess.Popen[str]) -> None:
    """End a command and all that it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


@cache
def _describe_machine() -> str:
    """What machine code depends on beside its source."""
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
        kept = [line for line in about.splitlines() if line.startswith(("flags", "model name"))]
    except OSError:
        kept = [platform.processor()]
    return "\n".join([ask_version(), platform.machine(), *kept, *FLAGS])


@cache
def read_header(name: str) -> str:
    """The text of one of our C headers."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def read_kernels() -> str:
    """Products of small matrices, functions of numbers, and operations on images."""
    return "\n".join(map(read_header, HEADERS))


def name_library(body: str, double: bool = False) -> str:
    """The name of the compiled form of some C, which computes in double precision if so asked."""
    source = _put_together(body, double) + _describe_machine()
    return hashlib.sha256(source.encode()).hexdigest()[:32]


def _put_together(body: str, double: bool) -> str:
    return "\n".join([f"#define DOUBLE {int(double)}", read_kernels(), body])


def load_library(body: str, double: bool = False, entry: str = "run") -> ctypes.CDLL:
    """The library of some C, which has the function `entry`; Untraceable where it cannot be had."""
    check_compiler()
    name = name_library(body, double)
    with library_cache.open_cache() as folder:
        content = library_cache.read_whole(folder, name)
        library = _open(content, entry) if content else None
        if library is None:  # there is none, or one of no use
            content = compile_source(_put_together(body, double), FLAGS)
            library = _open(content, entry)
            library_cache.store(folder, name, content)
    return library or _refuse_library()


def load_once(body: str, double: bool) -> ctypes.CDLL:
    """The library of some C that is compiled quickly, runs a few times and is not kept."""
    flags = [QUICK if flag == "-O3" else flag for flag in FLAGS]
    return _open(compile_source(_put_together(body, double), flags), "run") or _refuse_library()


def _refuse_library() -> NoReturn:
    raise Untraceable(f"the C compiler {' '.join(find_compiler())} makes no library to be loaded")


@cache
def _open(content: bytes, entry: str) -> ctypes.CDLL | None:
    """A library, if it can be loaded and has the function `entry`.

    It is loaded from a file of its own that is gone at once: what becomes of the cache does not
    touch it, and no other library has its name.
    """
    try:
        with (
            library_cache.open_cache() as folder,
            library_cache.write_once(folder, content) as path,
        ):
            library = ctypes.CDLL(str(path))
    except OSError:  # no library, or no room for it
        return None
    return library if hasattr(library, entry) else None


def is_checked(body: str, double: bool) -> bool:
    """Whether the library of some C was held against torch already."""
    with library_cache.open_cache() as folder:
        return library_cache.is_checked(folder, name_library(body, double))


def mark_checked(body: str, double: bool) -> None:
    """Keep with the library of some C that it is right."""
    with library_cache.open_cache() as folder:
        library_cache.mark_checked(folder, name_library(body, double))


def check_compiler() -> None:
    """Untraceable where there is no C compiler, or one that does not answer."""
    if not find_compiler():
        other = "; MSVC's cl takes other options" if shutil.which("cl") else ""
        raise Untraceable(
            f"there is no C compiler here{other}; gcc, clang or the package ziglang has one"
        )
    if not ask_version():
        raise Untraceable(f"`{' '.join(find_compiler())} --version` says nothing; CC names another")


def compile_source(source: str, flags: list[str]) -> bytes:
    """The machine code of some C."""
    try:
        with tempfile.TemporaryDirectory() as made:
            here = Path(made)
            (here / "step.c").write_text(source, encoding="utf-8")
            command = [*find_compiler(), *flags, "-o", "step.so", "step.c", *LIBRARIES]
            code, said = _run(command, here, TIMEOUT)
            if code:
                raise Untraceable(f"the C compiler said: {said.strip()[:300]}")
            return (here / "step.so").read_bytes()
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Untraceable(f"the C compiler failed: {problem}") from problem
