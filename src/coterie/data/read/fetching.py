"""Downloads of data files: whole, checked, and gone on with where they broke off."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
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


def try_download(url: str, check: str | None, file: str, place: Path) -> str:
    """Download one file into a folder; what went wrong, or "" where it is there."""
    pooch.get_logger().setLevel("WARNING")  # the progress bar says it all
    loader = partial(download_file, part=place / f"{file}.part")
    try:
        pooch.retrieve(url, check, fname=file, path=place, downloader=loader)
    except requests.ConnectionError:
        return f"no connection to {urlsplit(url).netloc}"
    except requests.RequestException as error:
        return str(error)
    except HTTPError:
        return f"{url} broke off: run again to go on from {file}.part"
    except ValueError:  # pooch has removed the file
        return f"{url} sent another file, which was thrown away"
    except OSError as error:
        return f"{place} cannot be written: {' '.join(str(error).split())}"
    return ""


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
