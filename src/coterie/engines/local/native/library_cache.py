"""The cache of compiled steps: only what this user wrote, whole and unchanged, is ever loaded.

A library lies beside its digest, in a folder that nobody else may write. Whatever fails a check is
as good as absent and compiled anew.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from coterie.engines.local.timing_cache import cache_folder

MAX_MB = 256  # of libraries; those that were not used for the longest time go first
LIBRARY, DIGEST, VERDICT = ".so", ".sum", ".checked"
OTHERS = stat.S_IWGRP | stat.S_IWOTH
STALE = 3600.0  # seconds after which an unfinished file was left by a process that was stopped
PINNED = Path("/proc/self/fd")  # where a system shows open folders as paths


def steps_folder() -> Path:
    """Where libraries lie if nobody else may write there."""
    return cache_folder().parent / "steps"


def find_cache_fault() -> str:
    """Why the folder of libraries is not to be trusted, "" where it is or is still to be made."""
    try:
        return _find_fault(steps_folder().lstat())
    except FileNotFoundError:
        return ""
    except OSError as problem:
        return f"it cannot be read: {problem.strerror}"


@contextmanager
def open_cache() -> Iterator[Path]:
    """The folder of libraries, ours alone; it stays the same one whatever becomes of its path."""
    folder = steps_folder()
    why = _make_private(folder)
    if why:
        folder = _replace_folder(folder, why)
    if not PINNED.is_dir():
        yield folder
        return
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        why = _find_fault(os.fstat(held))
        yield PINNED / str(held) if not why else _replace_folder(folder, why)
    finally:
        os.close(held)


def _make_private(folder: Path) -> str:
    """Make the folder where there is none; why it is not to be trusted, "" where it is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        why = _find_fault(folder.lstat())
    except OSError as problem:
        return f"it cannot be made: {problem.strerror}"
    return why or ("" if os.access(folder, os.W_OK) else "it cannot be written")


def _find_fault(found: os.stat_result) -> str:
    """What would let others change a file or folder; "" where only we can."""
    if not hasattr(os, "geteuid"):  # Windows has lists of rights instead
        return ""
    if stat.S_ISLNK(found.st_mode):
        return "it is a link"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
    return "others may write it: chmod 700 mends that" if found.st_mode & OTHERS else ""


@cache
def _replace_folder(refused: Path, why: str) -> Path:
    """A folder for this process alone, in place of one that is refused; said once."""
    print(
        f"coterie: compiled steps are not kept in {refused} ({why}): this process compiles its own",
        file=sys.stderr,
    )
    made = Path(tempfile.mkdtemp(prefix="coterie-steps-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def read_whole(folder: Path, name: str) -> bytes | None:
    """The library of this name if it is ours, as it was written; it counts as used now."""
    path = folder / (name + LIBRARY)
    content = _read(path)
    if content is None or _digest(content) != _read_line(folder / (name + DIGEST)):
        return None
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    return content


def store(folder: Path, name: str, content: bytes) -> None:
    """A new library, on the disk before it counts; the oldest make room for it, and where the disk
    is full it is not kept.
    """
    with suppress(OSError):
        _write(folder / (name + LIBRARY), content)
        _write(folder / (name + DIGEST), _digest(content).encode())
        _prune(folder, folder / (name + LIBRARY))


def _discard(folder: Path, name: str) -> None:
    """Remove a library and what is said of it."""
    for kind in (DIGEST, LIBRARY, VERDICT):
        (folder / (name + kind)).unlink(missing_ok=True)


@contextmanager
def write_once(folder: Path, content: bytes) -> Iterator[Path]:
    """A file of a library for as long as it takes to load it."""
    number, name = tempfile.mkstemp(prefix="once-", suffix=".part", dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        yield Path(name)
    finally:
        with suppress(OSError):  # Windows keeps what is loaded
            Path(name).unlink()


def is_checked(folder: Path, name: str) -> bool:
    """Whether the library that lies there now was held against torch."""
    verdict = _read_line(folder / (name + VERDICT))
    return bool(verdict) and verdict == _read_line(folder / (name + DIGEST))


def mark_checked(folder: Path, name: str) -> None:
    """Keep the verdict on a library; where it cannot be written, it is checked again."""
    with suppress(OSError):
        _write(folder / (name + VERDICT), _read_line(folder / (name + DIGEST)).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes | None:
    """The bytes of a plain file that only we can change; None for anything else."""
    wait_for_nobody = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        number = os.open(path, os.O_RDONLY | wait_for_nobody | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or _find_fault(found):
            return None
        return file.read()


def _read_line(path: Path) -> str:
    return (_read(path) or b"").decode("ascii", errors="replace")


def _write(path: Path, content: bytes) -> None:
    """A file, whole and on the disk or not at all."""
    number, temporary = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _prune(folder: Path, kept: Path) -> None:
    """Remove the libraries that were used the longest ago, until the rest fits MAX_MB, and what
    stopped processes left.
    """
    room = MAX_MB * 2**20 - kept.stat().st_size
    others = [(path, found) for path in folder.glob(f"*{LIBRARY}") if (found := _look(path))]
    for path, found in sorted(others, key=lambda one: -one[1].st_atime):
        room -= found.st_size if path != kept else 0
        if room < 0 and path != kept:
            _discard(folder, path.stem)
    for path in folder.glob("*.part"):
        left = _look(path)
        if left and time.time() - left.st_mtime > STALE:
            path.unlink(missing_ok=True)


def _look(path: Path) -> os.stat_result | None:
    """What is at a path; None where another process has just removed it."""
    try:
        return path.lstat()
    except OSError:
        return None
