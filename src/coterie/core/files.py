"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save, save_file
from torch import Tensor

from coterie.core.errors import BadInput, CannotWrite, format_value

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
NOT_FOUND = {errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO}
MAX_TEXT_BYTES = 2**26  # bytes of a text file that is read whole
SYNCED_AT_ONCE = 8  # files of a folder
MAX_PATH_CHARS = 3900  # letters of a folder's path: systems allow 4,096 with the names in it


@contextmanager
def catch_write_errors(folder: Path) -> Iterator[None]:
    """Whatever hinders writing into a folder becomes one line with the folder and the way on."""
    try:
        yield
    except OSError as problem:
        raise CannotWrite(_format_write_error(folder, problem.errno, str(problem))) from None
    except SafetensorError as problem:  # its text alone holds the system's number
        number = re.search(r"os error (\d+)", str(problem))
        if not number:
            raise
        raise CannotWrite(_format_write_error(folder, int(number[1]), str(problem))) from None


def _format_write_error(folder: Path, number: int | None, text: str) -> str:
    why = os.strerror(number) if number else text.splitlines()[0]
    if number in DISK_FULL:
        return f"{folder} cannot be written ({why}): make room on its disk"
    if number in NOT_WRITABLE:
        return f"{folder} cannot be written ({why}): make it writable, or give another --out"
    if number in NOT_FOUND:
        return f"{folder} cannot be written ({why}): bring back the folder or its disk"
    return f"{folder} cannot be written ({why}): mend that"


def save_tensors(
    tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file; it is not waited for, as there may be one per client."""
    temporary = path.with_name(path.name + ".part")
    with catch_write_errors(path.parent):
        held = {name: tensor.cpu() for name, tensor in tensors.items()}
        save_file(held, temporary, dict(metadata) if metadata else None)
        os.replace(temporary, path)


class SerializedTensors(NamedTuple):
    """A safetensors file that is not written yet."""

    content: bytes
    checksum: str  # as `digest` will find it


def serialize_tensors(
    tensors: dict[str, Tensor], metadata: Mapping[str, str] | None = None
) -> SerializedTensors:
    """Tensors as a safetensors file, in memory."""
    content = save(tensors, dict(metadata) if metadata else None)
    return SerializedTensors(content, hashlib.blake2b(content, digest_size=16).hexdigest())


def save_bytes(content: bytes, path: Path) -> None:
    """A file for a list of checksums, on the disk when this returns; only what is there already is
    replaced whole, as a file that no list names does not count yet.
    """
    final = os.fspath(path)
    with catch_write_errors(path.parent):
        temporary = f"{final}.part" if os.path.exists(final) else final
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if temporary != final:
            os.replace(temporary, final)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a file."""
    with catch_write_errors(path.parent), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def expand_home(path: str | Path) -> Path:
    """A path whose ~ is spelled out."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # ~nobody
        raise BadInput(
            f"{format_value(str(path))}: there is no such user: write the whole path"
        ) from None


def path_exists(path: Path) -> bool:
    """Whether there is anything at a path; a name that no file can have is nowhere."""
    try:
        path.stat()
    except (OSError, ValueError):  # absent, too long, not ours to see, or with a zero byte
        return False
    return True


def check_regular_file(path: Path) -> Path:
    """The path, if it is a plain file: to open a pipe would wait for ever."""
    try:
        kind = path.stat().st_mode
    except ValueError:
        raise BadInput(f"{format_value(str(path))} is no name of a file") from None
    if not stat.S_ISREG(kind):
        raise BadInput(f"{path} is {_describe_mode(kind)}, and a file is expected there")
    return path


def _describe_mode(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_text(path: Path) -> str:
    """The text of a plain file that is not too large; OSError where there is none."""
    size = check_regular_file(path).stat().st_size
    if size > MAX_TEXT_BYTES:
        raise BadInput(
            f"{path} has {size:,} bytes, and such a file at most {MAX_TEXT_BYTES:,}: it is "
            "damaged, or "
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
        raise BadInput(f"the folder {format_value(str(folder))} cannot be made: {why}") from None
    if len(str(folder.absolute())) > MAX_PATH_CHARS:
        raise BadInput(
            f"the folder {format_value(str(folder))} has a path of {len(str(folder.absolute())):,} "
            f"letters: give one of at most {MAX_PATH_CHARS:,}, so that its files can be named"
        )


def move_into_place(temporary: Path, final: Path) -> None:
    """Put a finished file or folder where it belongs, whole or not at all."""
    with catch_write_errors(final.parent):
        inside = list(temporary.glob("*"))
        if inside:  # what a folder holds first: a disk takes several files in the time of one
            with ThreadPoolExecutor(SYNCED_AT_ONCE) as pool:
                list(pool.map(sync, inside))
        sync(temporary)
        os.replace(temporary, final)
        sync(final.parent)  # the name too


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
    with check_regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest_text(text: str) -> str:
    """The checksum of a file that holds this text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    temporary = path.with_name(path.name + ".part")
    with catch_write_errors(path.parent):
        temporary.write_text(text, encoding="utf-8")
        move_into_place(temporary, path)
