"""Sites that are made from their folders, in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from helpers.town import BytesGrid, Lines

# isort: split
from coterie.deploy.site import open_site

NAMES = ("east", "north", "south")


@contextmanager
def open_sites(folder: Path, names: Sequence[str] = NAMES) -> Iterator[tuple[BytesGrid, Lines]]:
    """The sites of a folder; a grid that reaches them, and what they said."""
    grid, lines = BytesGrid(), Lines()
    for number, name in enumerate(names):
        grid.nodes[number + 1] = open_site(folder / "sites" / name, lines).answer
    yield grid, lines
