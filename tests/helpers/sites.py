"""Sites that are made from their folders, at their sockets in this process."""

import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.town import BytesGrid, Lines

# isort: split
from coterie.deploy.site import serve_folder

NAMES = ("east", "north", "south")


@contextmanager
def open_sites(folder: Path, names: Sequence[str] = NAMES) -> Iterator[tuple[BytesGrid, Lines]]:
    """The sites of a folder at their sockets, as threads; a grid that reaches them, and what they
    said.
    """
    grid, lines, stops = BytesGrid(), Lines(), []
    for number, name in enumerate(names):
        path, stop, ready = folder / f"{name}.sock", threading.Event(), threading.Event()

        def say(line, ready=ready):
            lines(line)
            ready.set()

        thread = threading.Thread(
            target=serve_folder, args=(folder / "sites" / name, path, say, stop.is_set), daemon=True
        )
        thread.start()
        assert ready.wait(300)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        stops.append((stop, thread))
        grid.nodes[number + 1] = path
    try:
        yield grid, lines
    finally:
        for stop, _ in stops:
            stop.set()
        for _, thread in stops:
            thread.join()
