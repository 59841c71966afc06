"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save, save_file
from torch import Tensor

from coterie.core.errors import BadInput, CannotWrite, shown

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SHUT = {errno.EACCES, errno.EPERM, errno.EROFS}
GONE = {errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO}
LARGEST = 2**26  # bytes of a text file that is read whole
LONGEST = 3900  # letters of a folder's path: systems allow 4,096 with the names in it


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
        held = {name: tensor.cpu() for name, tensor in tensors.items()}
        save_file(held, temporary, dict(metadata) if metadata else None)
        os.replace(temporary, path)


class Packed(NamedTuple):
    """A safetensors file that is not written yet."""

    content: bytes
    checksum: str  # as `digest` will find it


def packed(tensors: dict[str, Tensor], metadata: Mapping[str, str] | None = None) -> Packed:
    """Tensors as a safetensors file, in memory."""
    content = save(tensors, dict(metadata) if metadata else None)
    return Packed(content, hashlib.blake2b(content, digest_size=16).hexdigest())


def save_listed(content: bytes, path: Path) -> None:
    """A file for a list of checksums; only what is there already is replaced whole, as a file that
    no list names does not count yet.
    """
    final = os.fspath(path)
    with writing(path.parent):
        temporary = f"{final}.part" if os.path.exists(final) else final
        with open(temporary, "wb") as file:
            file.write(content)
        if temporary != final:
            os.replace(temporary, final)


def append(path: Path, line: str) -> None:
    """One more line at the end of a file."""
    with writing(path.parent), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def home(path: str | Path) -> Path:
    """A path whose ~ is spelled out."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~nobody
        raise BadInput(f"{shown(str(path))}: there is no such user: write the whole path") from None


def there(path: Path) -> bool:
    """Whether there is anything at a path; a name that no file can have is nowhere."""
    try:
        path.stat()
    except (OSError, ValueError):  # absent, too long, not ours to see, or with a zero byte
        return False
    return True


def plain(path: Path) -> Path:
    """The path, if it is a plain file: to open a pipe would wait for ever."""
    try:
        kind = path.stat().st_mode
    except ValueError:
        raise BadInput(f"{shown(str(path))} is no name of a file") from None
    if not stat.S_ISREG(kind):
        raise BadInput(f"{path} is {_kind(kind)}, and a file is expected there")
    return path


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_text(path: Path) -> str:
    """The text of a plain file that is not too large; OSError where there is none."""
    size = plain(path).stat().st_size
    if size > LARGEST:
        raise BadInput(
            f"{path} has {size:,} bytes, and such a file at most {LARGEST:,}: it is damaged, or "
            "another file under this name"
        )
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise BadInput(f"{path} is no text in UTF-8: {problem.reason}") from None


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that cannot be made, before any work is done for it."""
    try:
        folder.stat()
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise BadInput(f"{folder}: Not a directory: give another --out") from None
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or problem
        raise BadInput(f"the folder {shown(str(folder))} cannot be made: {why}") from None
    if len(str(folder.absolute())) > LONGEST:
        raise BadInput(
            f"the folder {shown(str(folder))} has a path of {len(str(folder.absolute())):,} "
            f"letters: give one of at most {LONGEST:,}, so that its files can be named"
        )


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
    with plain(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def write(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with writing(path.parent):
        temporary.write_text(text, encoding="utf-8")
        place(temporary, path)
