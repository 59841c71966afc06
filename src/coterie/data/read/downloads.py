"""Data files that are not there: fetched from their public home, and checked."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

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
    pooch.get_logger().setLevel("WARNING")  # the progress bar says it all
    place = folder / name
    problems = []
    for url in home.urls:
        loader = partial(download_file, part=place / f"{home.file}.part")
        try:
            path = pooch.retrieve(url, home.check, fname=home.file, path=place, downloader=loader)
            return Path(path)
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
        f"{name}: {lack}{home.file} ({check}) is neither in {place} nor in {folder}, "
        f"and the download failed ({'; '.join(problems)}): {explain_download(home, name, folder)}"
    )


def download_file(url: str, output: str | Path, _: object = None, *, part: Path) -> None:
    """A pooch downloader that goes on from a partial file while every attempt brings more of it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(part.stem, total=None, visible=False)

        def tell(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        while True:
            have = part.stat().st_size if part.exists() else 0
            try:
                append_download(url, part, have, tell)
                break
            except (requests.RequestException, HTTPError):
                if not part.exists() or part.stat().st_size <= have:
                    raise
    os.replace(part, output)


def append_download(
    url: str, part: Path, have: int, tell: Callable[[int, int | None], None]
) -> None:
    """Append what is missing to `part`; a server that cannot go on in the middle sends it anew."""
    span_wanted = {"Range": f"bytes={have}-"} if have else {}
    headers = {"Accept-Encoding": "identity"} | span_wanted
    with requests.get(url, headers=headers, stream=True, timeout=(10, 60)) as reply:
        span = reply.headers.get("Content-Range", "")
        beyond = reply.status_code == 416
        done = beyond and span.endswith(f"/{have}")  # all of it is here already
        elsewhere = beyond or (reply.ok and not span.startswith(f"bytes {have}-"))
        stale = have and not done and elsewhere
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
        append_download(url, part, 0, tell)
