"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from coterie.core.errors import CannotWrite

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}
GONE = {errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Whatever hinders writing into a folder becomes one line with the folder and the way on."""
    try:
        yield
    except OSError as problem:
        raise CannotWrite(_hindrance(folder, problem.errno, str(problem))) from None
    except SafetensorError as problem:  # its text alone holds the system's number
        number = re.search(r"os error (\d+)", str(problem))
        if not number:
            raise
        raise CannotWrite(_hindrance(folder, int(number[1]), str(problem))) from None


def _hindrance(folder: Path, number: int | None, text: str) -> str:
    why = os.strerror(number) if number else text.splitlines()[0]
    if number in FULL:
        return f"{folder} cannot be written ({why}): make room on its disk"
    if number in SHUT:
        return f"{folder} cannot be written ({why}): make it writable, or give another --out"
    if number in GONE:
        return f"{folder} cannot be written ({why}): bring back the folder or its disk"
    return f"{folder} cannot be written ({why}): mend that"


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file; it is not waited for, as there may be one per client."""
    temporary = path.with_name(path.name + ".part")
    with writing(path.parent):
        save_file(tensors, temporary, dict(metadata) if metadata else None)
        os.replace(temporary, path)


def append(path: Path, line: str) -> None:
    """One more line at the end of a file."""
    with writing(path.parent), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def place(temporary: Path, final: Path) -> None:
    """Put a finished file or folder where it belongs, whole or not at all."""
    with writing(final.parent):
        for path in (*sorted(temporary.glob("*")), temporary):  # what a folder holds first
            sync(path)
        os.replace(temporary, final)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest(path: Path) -> str:
    """A checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with writing(path.parent):
        temporary.write_text(text, encoding="utf-8")
        place(temporary, path)
