"""What loaders share: the homes of their files, and checks that these are whole."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.read.archives import FilePart, find_parts
from coterie.data.read.downloads import Origin, collect_files, explain_download


def make_origin(file: str, check: str, *bases: str) -> Origin:
    """The home of a file that several servers hold under the same name."""
    return Origin(file, tuple(base + file for base in bases), f"md5:{check}")


def check_row_count(part: FilePart, rows: int, expected: int, whole: bool) -> None:
    """Refuse a file of another length, unless a cut-down copy is welcome."""
    if whole and rows != expected:
        raise BadInput(
            f"{part.place}: {rows:,} rows, expected {expected:,}; whole=False takes a cut-down copy"
        )


def check_labels(part: FilePart, y: np.ndarray, classes: int, first: int = 0) -> None:
    """Refuse labels outside of `first` to `first + classes - 1`."""
    if len(y) and not (first <= y.min() and y.max() < first + classes):
        last = first + classes - 1
        raise BadInput(f"{part.place}: labels {y.min()} to {y.max()}, expected {first} to {last}")


def collect_present(
    folder: Path, name: str, parts: dict[str, list[str]], home: Origin, archives: Sequence[str] = ()
) -> dict[str, list[FilePart]]:
    """The files of the parts (train, test) that are there; where none is, all are downloaded."""
    stems = [stem for wanted in parts.values() for stem in wanted]
    got = find_parts(folder, name, stems, [home.file, *archives])
    got = got or collect_files(folder, name, dict.fromkeys(stems, home))
    chosen = {part: wanted for part, wanted in parts.items() if any(stem in got for stem in wanted)}
    for part, wanted in chosen.items():
        for stem in wanted:
            if stem not in got:
                raise BadInput(
                    f"{name}: the {part} part lacks {stem}; {explain_download(home, name, folder)}"
                )
    return {part: [got[stem] for stem in wanted] for part, wanted in chosen.items()}
