"""A site's states on its own disk, by token: each is there whole or not at all, and counts only
once the server names it.

A token says when a state was made (stage, round, exchange). Working on a message makes a new state
beside the one that the server named as its base; when the reply is lost, the server goes on naming
the old one, and both sides are where they were.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from coterie.core.checkpoint import MANIFEST, load_checkpoint
from coterie.core.errors import BadInput
from coterie.core.files import digest, move_into_place
from coterie.core.method import Tree
from coterie.core.tree import save_tree

RUN_PATTERN, TOKEN_PATTERN = r"[0-9a-f]{8,64}", r"[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}"
MAX_RUNS = 2  # runs whose states are kept: this one, and the one before


class StoredState(NamedTuple):
    """A state and the stage whose method made it."""

    stage: int
    state: Tree  # [1, ...]


class StateStore:
    """The states of one client."""

    def __init__(self, folder: Path, say: Callable[[str], None] = print):
        self.folder, self._log = folder, say

    def save(self, run: str, token: str, kept: StoredState) -> None:
        """Write a state; one of the same token is made anew."""
        final = self._place(run, token)
        temporary = final.with_name(f"{token}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_tree({"stage": kept.stage, "state": kept.state}, temporary, "state")
        (temporary / MANIFEST).write_text(
            json.dumps({p.name: digest(p) for p in sorted(temporary.iterdir())}), encoding="utf-8"
        )
        shutil.rmtree(final, ignore_errors=True)
        move_into_place(temporary, final)

    def load(self, run: str, token: str) -> StoredState | None:
        """A state, or None where it is lost."""
        folder = self._place(run, token)
        if not folder.exists():
            return None
        try:
            tree = load_checkpoint(folder)
        except BadInput as damage:
            self._log(f"a state of this site cannot be read: {damage}")
            return None
        return StoredState(tree["stage"], tree["state"])

    def tokens(self, run: str) -> set[str]:
        """The states of a run that are there."""
        folder = self._run(run)
        return (
            {p.name for p in folder.iterdir() if re.fullmatch(TOKEN_PATTERN, p.name)}
            if folder.is_dir()
            else set()
        )

    def keep(self, run: str, tokens: Collection[str]) -> None:
        """Delete every other state of this run, and runs long gone."""
        for path in self._run(run).iterdir() if self._run(run).is_dir() else ():
            if path.name not in tokens:
                shutil.rmtree(path, ignore_errors=True)
        others = (
            [p for p in self.folder.iterdir() if re.fullmatch(RUN_PATTERN, p.name)]
            if self.folder.is_dir()
            else []
        )
        for old in sorted(others, key=lambda p: (p.name == run, p.stat().st_mtime))[:-MAX_RUNS]:
            shutil.rmtree(old, ignore_errors=True)

    def _run(self, run: str) -> Path:
        if not re.fullmatch(RUN_PATTERN, run):  # it names a folder, and comes from the network
            raise BadInput(f"the message's run '{run[:80]}' is no name of a run")
        return self.folder / run

    def _place(self, run: str, token: str) -> Path:
        if not re.fullmatch(TOKEN_PATTERN, token):
            raise BadInput(f"the message's token '{token[:80]}' is no name of a state")
        return self._run(run) / token
