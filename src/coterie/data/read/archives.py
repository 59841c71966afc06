"""Data files that are there: found in a data folder, and opened whatever wraps them."""

import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import pooch

from coterie.core.errors import BadInput

DAMAGE = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError)
DECOMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
}


class FilePart(NamedTuple):
    """The unpacked bytes of one file, and where they lay, for error messages."""

    data: bytes
    place: str


def data_folder(folder: Path | None = None) -> Path:
    """The folder given, else $COTERIE_DATA, else the user's cache folder."""
    return Path(folder or os.environ.get("COTERIE_DATA") or pooch.os_cache("coterie")).expanduser()


@contextmanager
def report_damage(place: object, expected: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into one line."""
    try:
        yield
    except BadInput:
        raise
    except DAMAGE as error:
        raise BadInput(
            f"{place} is damaged or cannot be read ({error}); expected {expected}"
        ) from error


def find_file(folder: Path, name: str, stem: str) -> Path | None:
    """The file `stem`, plain or compressed: below `folder/name`, or directly in `folder`."""
    for place in (folder / name, folder):
        glob = (
            place.rglob if place.name == name else place.glob
        )  # `folder` may be the data set's own
        for wrap in ("", *DECOMPRESSORS):
            hits = sorted(path for path in glob(stem + wrap) if path.is_file())
            if hits:
                return hits[0]
    return None


def read_file(path: Path) -> FilePart:
    """One loose file, unpacked by its suffix."""
    with report_damage(path, f"a whole {path.suffix or 'plain'} file"):
        return FilePart(DECOMPRESSORS.get(path.suffix, bytes)(path.read_bytes()), str(path))


def read_members(archive: Path, wanted: Iterable[str]) -> dict[str, FilePart]:
    """The wanted files of a tar or zip archive, in one pass; a zip inside a zip is opened too."""
    by_name = {stem + wrap: stem for stem in wanted for wrap in ("", *DECOMPRESSORS)}
    parts: dict[str, FilePart] = {}

    def keep(member: str, data: bytes) -> None:
        base = member.rsplit("/", 1)[-1]
        parts[by_name[base]] = FilePart(
            DECOMPRESSORS.get(Path(base).suffix, bytes)(data), f"{archive}:{member}"
        )

    def unzip(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file) as box:
            for member in box.namelist():
                if member.rsplit("/", 1)[-1] in by_name:
                    keep(member, box.read(member))
                elif member.endswith(".zip"):
                    unzip(io.BytesIO(box.read(member)))

    with report_damage(archive, "a whole archive"):
        if archive.suffix == ".zip":
            with archive.open("rb") as file:
                unzip(file)
        else:
            with tarfile.open(archive) as box:
                for info in box:
                    wanted_one = info.name.rsplit("/", 1)[-1] in by_name
                    stream = box.extractfile(info) if wanted_one else None
                    if stream is not None:
                        keep(info.name, stream.read())
    return parts


def read_lines(path: Path, member: str | None = None) -> Iterator[bytes]:
    """The lines of a text file too large to hold, plain, compressed, or a member of a zip."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with report_damage(path, f"a whole text file {member or path.name}"):
        if member is None:
            with openers.get(path.suffix, open)(path, "rb") as file:
                yield from file
        else:
            with zipfile.ZipFile(path) as box:
                names = box.namelist()
                inside = [name for name in names if name.rsplit("/", 1)[-1] == member]
                if not inside:
                    raise BadInput(f"{path} holds no {member}; it holds {', '.join(names)}")
                with box.open(inside[0]) as text:
                    yield from text


def find_parts(
    folder: Path, name: str, stems: Sequence[str], archives: Iterable[str] = ()
) -> dict[str, FilePart]:
    """The wanted files that are there, loose or in one of the archives; nothing is downloaded."""
    paths = {stem: path for stem in stems if (path := find_file(folder, name, stem))}
    with ThreadPoolExecutor(
        min(4, os.cpu_count() or 1)
    ) as pool:  # the decompressors release the lock
        parts = dict(zip(paths, pool.map(read_file, paths.values()), strict=True))
    for archive in archives:
        missing = [stem for stem in stems if stem not in parts]
        path = find_file(folder, name, archive) if missing else None
        if path:
            parts |= read_members(path, missing)
    return parts
