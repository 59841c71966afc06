"""What loaders share: the homes of their files, and checks that these are whole."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.archives import Part, look
from coterie.data.downloads import Origin, collect, way_out


def mirrors(file: str, check: str, *bases: str) -> Origin:
    """The home of a file that several servers hold under the same name."""
    return Origin(file, tuple(base + file for base in bases), f"md5:{check}")


def expect_rows(part: Part, rows: int, expected: int, whole: bool) -> None:
    """Refuse a file of another length, unless a cut-down copy is welcome."""
    if whole and rows != expected:
        raise BadInput(
            f"{part.place}: {rows:,} rows, expected {expected:,}; whole=False takes a cut-down copy"
        )


def expect_labels(part: Part, y: np.ndarray, classes: int, first: int = 0) -> None:
    """Refuse labels outside of `first` to `first + classes - 1`."""
    if len(y) and not (first <= y.min() and y.max() < first + classes):
        last = first + classes - 1
        raise BadInput(f"{part.place}: labels {y.min()} to {y.max()}, expected {first} to {last}")


def present(
    folder: Path, name: str, parts: dict[str, list[str]], home: Origin, archives: Sequence[str] = ()
) -> dict[str, list[Part]]:
    """The files of the parts (train, test) that are there; where none is, all are downloaded."""
    stems = [stem for wanted in parts.values() for stem in wanted]
    got = look(folder, name, stems, [home.file, *archives])
    got = got or collect(folder, name, dict.fromkeys(stems, home))
    chosen = {part: wanted for part, wanted in parts.items() if any(stem in got for stem in wanted)}
    for part, wanted in chosen.items():
        for stem in wanted:
            if stem not in got:
                raise BadInput(
                    f"{name}: the {part} part lacks {stem}; {way_out(home, name, folder)}"
                )
    return {part: [got[stem] for stem in wanted] for part, wanted in chosen.items()}
