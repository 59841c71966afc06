"""Trees on disk without pickle: a JSON skeleton beside a safetensors file, put in place
atomically.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.files import catch_write_errors, digest, move_into_place, read_text
from coterie.core.method import Tree
from coterie.core.tree import load_tree, save_tree

MANIFEST = "files.json"  # {file: checksum}, written last
STATE = ("state.json", "state.safetensors")  # what every checkpoint has
# checkpoints per run: the newest, and the one before in case it is damaged; as many whole ones
NUM_KEPT = 2
BASE = "base.json"  # of a checkpoint of changes: the whole one that they are changes of
STATES = "states"  # of the tree: what a base has for clients that did not change since


StackedStates = tuple[list[int], Tree]  # clients, and their states stacked


class FoundCheckpoint(NamedTuple):
    """The newest checkpoint that can be read."""

    folder: Path
    tree: Tree
    said: str  # why it is not the newest of all; "" where it is


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first; what an interrupted save left behind (.part) is none."""
    return sorted(
        p for p in run.glob("checkpoint-*") if p.is_dir() and not p.name.endswith(".part")
    )


def save_checkpoint(
    run: Path,
    number: int,
    tree: Tree,
    extra: dict[str, Callable[[Path], None]],
    base: Path | None = None,
) -> Path:
    """A new checkpoint, then all but the newest KEPT go, and all but the newest KEPT whole ones;
    `extra` maps file names to functions that write them.

    base: a whole checkpoint of the run; the states of the tree are those that changed since.
    """
    final = run / f"checkpoint-{number:07d}"
    temporary = run / f"checkpoint-{number:07d}.part"
    with catch_write_errors(run):
        if not _is_whole(final):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            save_tree(tree, temporary, "state")
            for name, write in extra.items():
                write(temporary / name)
            if base is not None:
                known = {"name": base.name, "digest": digest(base / MANIFEST)}
                (temporary / BASE).write_text(json.dumps(known), encoding="utf-8")
            digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
            (temporary / MANIFEST).write_text(json.dumps(digests, indent=1), encoding="utf-8")
            shutil.rmtree(final, ignore_errors=True)  # a damaged one
            move_into_place(temporary, final)  # it is there for good before the old ones go
        found = list_checkpoints(run)
        past = [path for path in found if path <= final]
        # one of a later round was damaged, as the run has gone back before it
        late = [path for path in found if path > final]
        whole = [path for path in past if not (path / BASE).exists()]
        gone = [path for path in past[:-NUM_KEPT] if path not in whole[-NUM_KEPT:]]
        for old in [*gone, *late, *run.glob("checkpoint-*.part")]:
            shutil.rmtree(old)
    return final


def _is_whole(folder: Path) -> bool:
    try:
        load_checkpoint(folder)
    except BadInput:
        return False
    return True


def find_newest_checkpoint(run: Path) -> FoundCheckpoint | None:
    """The newest checkpoint that is whole; None where there is none at all.

    Where every one is damaged, what is wrong with the newest is raised.
    """
    problems: list[BadInput] = []
    for folder in reversed(list_checkpoints(run)):
        try:
            tree = load_checkpoint(folder)
        except BadInput as problem:
            problems.append(problem)
            continue
        said = f"{problems[0]}; going on from {folder.name} instead" if problems else ""
        return FoundCheckpoint(folder, tree, said)
    if problems:
        raise problems[0]
    return None


def load_checkpoint(folder: Path) -> Tree:
    """The tree of a checkpoint, if every file is just as it was written."""
    way_out = f"restore it from a copy, or delete {folder} to begin anew"
    try:
        written = dict(json.loads(read_text(folder / MANIFEST)))
        missing = [name for name in STATE if name not in written]
        if missing:
            raise BadInput(
                f"the checkpoint {folder} is damaged ({MANIFEST} does not list {missing[0]}): "
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
            else f"{MANIFEST} is damaged"
        )
        raise BadInput(f"the checkpoint {folder} is not whole ({what}): {way_out}") from None
    tree = load_tree(folder, "state")
    return _merge_base(folder, tree, way_out) if BASE in written else tree


def _merge_base(folder: Path, tree: Tree, way_out: str) -> Tree:
    """The tree of changes with what did not change since its base."""
    known = json.loads(read_text(folder / BASE))
    base = folder.parent / Path(known["name"]).name
    if not (base / MANIFEST).is_file() or digest(base / MANIFEST) != known["digest"]:
        raise BadInput(
            f"the checkpoint {folder} is not whole ({base.name}, which it builds on, is missing "
            f"or another): {way_out}"
        )
    before = load_checkpoint(base)[STATES]
    pairs = zip(before, tree[STATES], strict=True)
    return {**tree, STATES: [overlay_states(*pair) for pair in pairs]}


def overlay_states(before: StackedStates, changes: StackedStates) -> StackedStates:
    """The states of clients, those that changed in place of the old ones; clients ascend."""
    if not changes[0] or not before[0]:
        return changes if changes[0] else before
    new = set(changes[0])
    kept = [k for k, i in enumerate(before[0]) if i not in new]
    clients = [*(before[0][k] for k in kept), *changes[0]]
    order = torch.tensor(sorted(range(len(clients)), key=clients.__getitem__))
    at = torch.tensor(kept, dtype=torch.int64)
    stacked = pytree.tree_map(
        lambda old, now: torch.cat([old[at], now])[order], before[1], changes[1]
    )
    return [clients[int(k)] for k in order], stacked
