"""Data files that are not there: fetched from their public home, and checked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import BadInput
from coterie.data.read.archives import FilePart, find_parts


class Origin(NamedTuple):
    """The public home of one file."""

    file: str
    urls: tuple[str, ...]
    check: str | None = None  # "md5:..." or "sha256:..."; None where no checksum is published


def collect_files(folder: Path, name: str, homes: Mapping[str, Origin]) -> dict[str, FilePart]:
    """All files of `homes` {file: its home}; what is absent is downloaded into `folder/name`."""
    boxes = dict.fromkeys(home.file for stem, home in homes.items() if home.file != f"{stem}.gz")
    parts = find_parts(folder, name, list(homes), boxes)
    absent = [stem for stem in homes if stem not in parts]
    for home in dict.fromkeys(homes[stem] for stem in absent):
        fetch_file(home, name, folder, absent if parts else [])
    if absent:
        parts |= find_parts(folder, name, absent, boxes)
    for stem in absent:
        if stem not in parts:
            home = homes[stem]
            way = explain_download(home, name, folder)
            raise BadInput(f"{folder / name / home.file} holds no {stem}; {way}")
    return parts


def explain_download(home: Origin, name: str, folder: Path) -> str:
    """How a user gets a file that is not there."""
    return (
        f"get {home.urls[0]}, put it into {folder / name}, "
        "or set COTERIE_DATA or --data-dir to the folder that holds it"
    )


def fetch_file(home: Origin, name: str, folder: Path, lacks: Sequence[str] = ()) -> Path:
    """Download one file into `folder/name`; it gets its name only once its checksum is verified."""
    from coterie.data.read.fetching import try_download

    place = folder / name
    problems = []
    for url in home.urls:
        problem = try_download(url, home.check, home.file, place)
        if not problem:
            return place / home.file
        problems.append(problem)
    lack = f"no {', '.join(lacks)}; " if lacks else ""
    check = (home.check or "no checksum published").replace(":", " ")
    raise BadInput(
        f"{name}: {lack}{home.file} ({check}) is neither in {place} nor in {folder}, "
        f"and the download failed ({'; '.join(problems)}): {explain_download(home, name, folder)}"
    )
