"""Trees on disk without pickle: a JSON skeleton beside a safetensors file, put in place
atomically.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coterie.core.errors import BadInput
from coterie.core.files import digest, place, read_text, sync, writing
from coterie.core.method import Tree
from coterie.core.tree import load_tree, save_tree

WHOLE = "files.json"  # {file: checksum}, written last
STATE = ("state.json", "state.safetensors")  # what every checkpoint has
KEPT = 2  # checkpoints per run: the newest, and the one before in case it is damaged


class Found(NamedTuple):
    """The newest checkpoint that can be read."""

    folder: Path
    tree: Tree
    said: str  # why it is not the newest of all; "" where it is


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first; what an interrupted save left behind (.part) is none."""
    return sorted(
        p for p in run.glob("checkpoint-*") if p.is_dir() and not p.name.endswith(".part")
    )


def save_checkpoint(
    run: Path, number: int, tree: Tree, extra: dict[str, Callable[[Path], None]]
) -> None:
    """A new checkpoint, then all but the newest KEPT go; `extra` maps file names to functions that
    write them.
    """
    final = run / f"checkpoint-{number:07d}"
    temporary = run / f"checkpoint-{number:07d}.part"
    with writing(run):
        if not _is_whole(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            save_tree(tree, temporary, "state")
            for name, write in extra.items():
                write(temporary / name)
            digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
            (temporary / WHOLE).write_text(json.dumps(digests, indent=1), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            place(temporary, final)
            sync(run)  # the new one is there for good before the old ones go
        found = checkpoints(run)
        past = [path for path in found if path <= final]
        # one of a later round was damaged, as the run has gone back before it
        late = [path for path in found if path > final]
        for old in [*past[:-KEPT], *late, *run.glob("checkpoint-*.part")]:
            shutil.rmtree(old)


def _is_whole(folder: Path) -> bool:
    try:
        load_checkpoint(folder)
    except BadInput:
        return False
    return True


def newest_checkpoint(run: Path) -> Found | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Where every one is damaged, what is wrong with the newest is raised.
    """
    problems: list[BadInput] = []
    for folder in reversed(checkpoints(run)):
        try:
            tree = load_checkpoint(folder)
        except BadInput as problem:
            problems.append(problem)
            continue
        said = f"{problems[0]}; going on from {folder.name} instead" if problems else ""
        return Found(folder, tree, said)
    if problems:
        raise problems[0]
    return None


def load_checkpoint(folder: Path) -> Tree:
    """The tree of a checkpoint, if every file is just as it was written."""
    way_out = f"restore it from a copy, or delete {folder} to begin anew"
    try:
        written = dict(json.loads(read_text(folder / WHOLE)))
        missing = [name for name in STATE if name not in written]
        if missing:
            raise BadInput(
                f"the checkpoint {folder} is damaged ({WHOLE} does not list {missing[0]}): "
                f"{way_out}"
            )
        for name, known in written.items():
            if digest(folder / name) != known:
                raise BadInput(
                    f"the checkpoint {folder} is damaged ({name} is not as it was written): "
                    f"{way_out}"
                )
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        if isinstance(problem, BadInput):
            raise
        what = (
            f"{Path(problem.filename).name} is missing"
            if isinstance(problem, FileNotFoundError)
            else f"{WHOLE} is damaged"
        )
        raise BadInput(f"the checkpoint {folder} is not whole ({what}): {way_out}") from None
    return load_tree(folder, "state")
