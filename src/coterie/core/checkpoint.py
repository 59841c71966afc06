"""Trees on disk without pickle: a JSON skeleton beside a safetensors file, put in place
atomically.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from coterie.core.errors import BadInput
from coterie.core.files import digest, place, sync
from coterie.core.method import Tree
from coterie.core.tree import load_tree, save_tree

WHOLE = "files.json"  # {file: checksum}, written last


def checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, oldest first; what an interrupted save left behind (.part) is none."""
    return sorted(
        p for p in run.glob("checkpoint-*") if p.is_dir() and not p.name.endswith(".part")
    )


def save_checkpoint(
    run: Path, number: int, tree: Tree, extra: dict[str, Callable[[Path], None]]
) -> None:
    """A new checkpoint, then the older ones go; `extra` maps file names to functions that write
    them.
    """
    final = run / f"checkpoint-{number:07d}"
    temporary = run / f"checkpoint-{number:07d}.part"
    if not final.exists():
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_tree(tree, temporary, "state")
        for name, write in extra.items():
            write(temporary / name)
        digests = {path.name: digest(path) for path in sorted(temporary.iterdir())}
        (temporary / WHOLE).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        place(temporary, final)
        sync(run)  # the new one is there for good before the old ones go
    for old in [*checkpoints(run), *run.glob("checkpoint-*.part")]:
        if old != final:
            shutil.rmtree(old)


def load_checkpoint(folder: Path) -> Tree:
    """The tree of a checkpoint, if every file is just as it was written."""
    way_out = f"restore it from a copy, or delete {folder} to begin anew"
    try:
        for name, written in json.loads((folder / WHOLE).read_text(encoding="utf-8")).items():
            if digest(folder / name) != written:
                raise BadInput(
                    f"the checkpoint {folder} is damaged ({name} is not as it was written): "
                    f"{way_out}"
                )
    except (OSError, ValueError, AttributeError) as problem:
        if isinstance(problem, BadInput):
            raise
        what = (
            f"{Path(problem.filename).name} is missing"
            if isinstance(problem, FileNotFoundError)
            else f"{WHOLE} is damaged"
        )
        raise BadInput(f"the checkpoint {folder} is not whole ({what}): {way_out}") from None
    return load_tree(folder, "state")
