"""Data files: found in a data folder, opened whatever wraps them, fetched from their home when absent."""

import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pooch
import requests
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from urllib3.exceptions import HTTPError

from coterie.core.errors import BadInput

DAMAGE = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError)
WRAPS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}


class Origin(NamedTuple):
    """The public home of one file."""

    file: str
    urls: tuple[str, ...]
    check: str | None = None  # "md5:..." or "sha256:..."; None where no checksum is published


class Part(NamedTuple):
    """The unpacked bytes of one file, and where they lay, for error messages."""

    data: bytes
    place: str


def data_folder(folder: Path | None = None) -> Path:
    """The folder given, else $COTERIE_DATA, else the user's cache folder."""
    return Path(folder or os.environ.get("COTERIE_DATA") or pooch.os_cache("coterie")).expanduser()


@contextmanager
def whole_file(place: object, expected: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise into one line."""
    try:
        yield
    except BadInput:
        raise
    except DAMAGE as error:
        raise BadInput(
            f"{place} is damaged or cannot be read ({error}); expected {expected}"
        ) from error


def find(folder: Path, name: str, stem: str) -> Path | None:
    """The file `stem`, plain or compressed: anywhere below `folder/name`, or directly in `folder`."""
    for place in (folder / name, folder):
        glob = (
            place.rglob if place.name == name else place.glob
        )  # `folder` may be the data set's own
        for wrap in ("", *WRAPS):
            hits = sorted(path for path in glob(stem + wrap) if path.is_file())
            if hits:
                return hits[0]
    return None


def read(path: Path) -> Part:
    """One loose file, unpacked by its suffix."""
    with whole_file(path, f"a whole {path.suffix or 'plain'} file"):
        return Part(WRAPS.get(path.suffix, bytes)(path.read_bytes()), str(path))


def members(archive: Path, wanted: Iterable[str]) -> dict[str, Part]:
    """The wanted files of a tar or zip archive, in one pass; a zip inside a zip is opened too."""
    by_name = {stem + wrap: stem for stem in wanted for wrap in ("", *WRAPS)}
    parts: dict[str, Part] = {}

    def keep(member: str, data: bytes) -> None:
        base = member.rsplit("/", 1)[-1]
        parts[by_name[base]] = Part(
            WRAPS.get(Path(base).suffix, bytes)(data), f"{archive}:{member}"
        )

    def unzip(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file) as box:
            for member in box.namelist():
                if member.rsplit("/", 1)[-1] in by_name:
                    keep(member, box.read(member))
                elif member.endswith(".zip"):
                    unzip(io.BytesIO(box.read(member)))

    with whole_file(archive, "a whole archive"):
        if archive.suffix == ".zip":
            with archive.open("rb") as file:
                unzip(file)
        else:
            with tarfile.open(archive) as box:
                for info in box:
                    stream = (
                        box.extractfile(info) if info.name.rsplit("/", 1)[-1] in by_name else None
                    )
                    if stream is not None:
                        keep(info.name, stream.read())
    return parts


def lines(path: Path, member: str | None = None) -> Iterator[bytes]:
    """The lines of a text file too large to hold, plain, compressed, or a member of a zip."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
    with whole_file(path, f"a whole text file {member or path.name}"):
        if member is None:
            with openers.get(path.suffix, open)(path, "rb") as file:
                yield from file
        else:
            with zipfile.ZipFile(path) as box:
                inside = [name for name in box.namelist() if name.rsplit("/", 1)[-1] == member]
                if not inside:
                    raise BadInput(
                        f"{path} holds no {member}; it holds {', '.join(box.namelist())}"
                    )
                with box.open(inside[0]) as text:
                    yield from text


def look(
    folder: Path, name: str, stems: Sequence[str], archives: Iterable[str] = ()
) -> dict[str, Part]:
    """Those of the wanted files that are there, loose or in one of the archives; nothing is downloaded."""
    paths = {stem: path for stem in stems if (path := find(folder, name, stem))}
    with ThreadPoolExecutor(
        min(4, os.cpu_count() or 1)
    ) as pool:  # the decompressors release the lock
        parts = dict(zip(paths, pool.map(read, paths.values()), strict=True))
    for archive in archives:
        missing = [stem for stem in stems if stem not in parts]
        path = find(folder, name, archive) if missing else None
        if path:
            parts |= members(path, missing)
    return parts


def collect(folder: Path, name: str, homes: Mapping[str, Origin]) -> dict[str, Part]:
    """All files of `homes` (file -> where it comes from); what is absent is downloaded into `folder/name`."""
    boxes = dict.fromkeys(home.file for stem, home in homes.items() if home.file != f"{stem}.gz")
    parts = look(folder, name, list(homes), boxes)
    absent = [stem for stem in homes if stem not in parts]
    for home in dict.fromkeys(homes[stem] for stem in absent):
        fetch(home, name, folder, absent if parts else [])
    if absent:
        parts |= look(folder, name, absent, boxes)
    for stem in absent:
        if stem not in parts:
            raise BadInput(
                f"{folder / name / homes[stem].file} holds no {stem}; {way_out(homes[stem], name, folder)}"
            )
    return parts


def way_out(home: Origin, name: str, folder: Path) -> str:
    """How a user gets a file that is not there."""
    return f"get {home.urls[0]}, put it into {folder / name}, or set COTERIE_DATA or --data-dir to the folder that holds it"


def fetch(home: Origin, name: str, folder: Path, lacks: Sequence[str] = ()) -> Path:
    """Download one file into `folder/name`; it gets its name only once its checksum is verified."""
    pooch.get_logger().setLevel("WARNING")  # the progress bar says it all
    place = folder / name
    problems = []
    for url in home.urls:
        loader = partial(download, part=place / f"{home.file}.part")
        try:
            return Path(
                pooch.retrieve(url, home.check, fname=home.file, path=place, downloader=loader)
            )
        except requests.ConnectionError:
            problems.append(f"no connection to {urlsplit(url).netloc}")
        except requests.RequestException as error:
            problems.append(str(error))
        except HTTPError:
            problems.append(f"{url} broke off: run again to go on from {home.file}.part")
        except ValueError:  # pooch has removed the file
            problems.append(f"{url} sent another file, which was thrown away")
        except OSError as error:
            problems.append(f"{place} cannot be written: {' '.join(str(error).split())}")
    lack = f"no {', '.join(lacks)}; " if lacks else ""
    check = (home.check or "no checksum published").replace(":", " ")
    raise BadInput(
        f"{name}: {lack}{home.file} ({check}) is neither in {place} "
        f"nor in {folder}, and the download failed ({'; '.join(problems)}): {way_out(home, name, folder)}"
    )


def download(url: str, output: str | Path, _: object = None, *, part: Path) -> None:
    """A pooch downloader that goes on from a partial file, as long as every attempt brings more of it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(part.stem, total=None, visible=False)

        def tell(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        while True:
            have = part.stat().st_size if part.exists() else 0
            try:
                transfer(url, part, have, tell)
                break
            except (requests.RequestException, HTTPError):
                if not part.exists() or part.stat().st_size <= have:
                    raise
    os.replace(part, output)


def transfer(url: str, part: Path, have: int, tell: Callable[[int, int | None], None]) -> None:
    """Append what is missing to `part`, or write it anew when the server cannot go on in the middle."""
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=(10, 60)) as reply:
        span = reply.headers.get("Content-Range", "")
        beyond = reply.status_code == 416
        done = beyond and span.endswith(f"/{have}")  # all of it is here already
        stale = (
            have and not done and (beyond or (reply.ok and not span.startswith(f"bytes {have}-")))
        )
        if not done and not stale:
            reply.raise_for_status()
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab") as file:
                for chunk in reply.raw.stream(1 << 16, decode_content=False):
                    file.write(chunk)
                    tell(file.tell(), total)
    if stale:
        part.unlink()
        transfer(url, part, 0, tell)


def idx(part: Part, dims: int, code: int = 8) -> np.ndarray:
    """An array in LeCun's idx format; code 8 is unsigned bytes, 12 big-endian 32-bit integers."""
    kind = np.dtype({8: "u1", 12: ">i4"}[code])
    magic, head = (code << 8) + dims, 4 + 4 * dims
    got = int.from_bytes(part.data[:4], "big")
    if got != magic or len(part.data) < head:
        raise BadInput(
            f"{part.place}: magic number {got}, but an idx file of this kind starts with {magic}"
        )
    shape = tuple(int(n) for n in np.frombuffer(part.data, ">u4", dims, offset=4))
    size = head + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(part.data) != size:
        raise BadInput(
            f"{part.place}: {len(part.data):,} bytes, but its header announces {shape}: expected {size:,}"
        )
    return np.frombuffer(part.data, kind, offset=head).reshape(shape)


class ArraysOnly(pickle.Unpickler):
    """Reads pickled dicts, lists, text, numbers and numpy arrays; anything else, code above all, refused."""

    allowed = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def unpickle(part: Part) -> dict[str, Any]:
    """The dict in a pickle of plain values and arrays, its keys as text (Python 2 wrote them as bytes)."""
    try:
        value = ArraysOnly(io.BytesIO(part.data), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else str(key): item
            for key, item in value.items()
        }
    except Exception as error:  # a damaged pickle can raise anything
        raise BadInput(f"{part.place}: not a pickle of plain arrays ({error})") from error
