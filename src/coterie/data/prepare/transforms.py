"""Groups of clients whose images are turned or whose labels are permuted, and the rows they see."""

from collections.abc import Callable
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
import torch

from coterie.core.augmentation import move_images
from coterie.core.errors import CannotWrite
from coterie.core.memory_map import map_tensor
from coterie.core.rng import stream
from coterie.data.arrays import BLOCK, iterate_blocks
from coterie.data.client_rows import ClientRows
from coterie.data.dataset import Dataset
from coterie.data.partition.cuts import Cuts

CACHED = 2**18  # bytes of inputs made at once, so that what lies between stays in the cache
IN_MEMORY = 2**27  # bytes of a table's inputs beyond which they lie in a file
PADDING = 4  # pixels around an image before a random crop


class InputFunction(NamedTuple):
    """How rows of a data set become inputs of a model."""

    of: Callable[[np.ndarray], np.ndarray]  # from numbers of rows
    as_is: bool  # whether they are the rows themselves


class StoredRows(NamedTuple):
    """The rows in use, as the clients see them."""

    x: np.ndarray
    y: np.ndarray
    cuts: Cuts  # where each client finds its own
    rows: np.ndarray  # [n] which row of the data set each one is


class EarlierInputs(NamedTuple):
    """Inputs that were made before, in the very same way."""

    x: np.ndarray
    rows: np.ndarray  # [n] which row of the data set each one is


class Transform(NamedTuple):
    """What makes a group of clients differ from the others."""

    turns: int  # by 90 degrees
    relabel: np.ndarray | None  # [classes] the new label of each class


def transforms_of(base: Dataset, seed: int, rotate: int, permute: int) -> list[Transform]:
    """One change per group; all permutations are different.

    rotate = 4 turns by 90, 180, 270 and 0 degrees.
    """
    relabels: list[np.ndarray | None] = [] if permute > 1 else [None]
    seen: set[tuple[int, ...]] = set()
    while len(relabels) < permute:
        rng = stream(seed, "permute", len(relabels))
        order = rng.permutation(base.classes)
        while tuple(order) in seen:
            order = rng.permutation(base.classes)
        seen.add(tuple(order))
        relabels.append(order)
    return [
        Transform(4 // rotate * (r + 1) % 4, relabel) for r in range(rotate) for relabel in relabels
    ]


def augment_once(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images [n, c, h, w], each cropped at random out of a border of 4 zeros and flipped left to
    right with probability 1/2.
    """
    down, right = rng.integers(0, 2 * PADDING + 1, (2, len(x))) - PADDING
    moves = np.stack([down, right, rng.random(len(x)) < 0.5], axis=1)
    black, found = torch.zeros(x.shape[1:], dtype=torch.uint8), np.empty_like(x)
    for at in iterate_blocks(len(x)):
        some = move_images(torch.from_numpy(x[at]), torch.from_numpy(moves[at]), black)
        found[at] = some.numpy()
    return found


def store_rows(
    base: Dataset,
    pieces: Cuts,
    groups: np.ndarray,
    changes: list[Transform],
    inputs: InputFunction,
    earlier: EarlierInputs | None = None,
) -> StoredRows:
    """The rows in use as model inputs, group after group, and where each client finds its own.

    A row that several groups share (the official test images) is there once per group. Features
    that need no change are not copied: the loader's own array is the store. Nor are those made
    anew that were made earlier of the same rows.
    """
    if len(changes) == 1 and inputs.as_is and base.x.dtype in (np.float32, np.int64):
        return StoredRows(base.x, base.y, pieces, np.arange(len(base.y)))
    owners = [np.flatnonzero(groups == g) for g in range(len(changes))]
    stored = [_find_used([part.only(who) for part in pieces], len(base.y)) for who in owners]
    starts = np.cumsum([0, *(len(block) for block in stored)])
    y = np.empty((starts[-1], *base.y.shape[1:]), base.y.dtype)
    for start, block, change in zip(starts, stored, changes, strict=False):
        labels = base.y[block]
        y[start : start + len(block)] = labels if change.relabel is None else change.relabel[labels]
    same = earlier is not None and len(stored) == 1 and np.array_equal(stored[0], earlier.rows)
    x = (
        earlier.x
        if earlier is not None and same
        else _build_inputs(stored, starts, changes, inputs)
    )
    return StoredRows(x, y, _renumber_rows(pieces, groups, stored, starts), np.concatenate(stored))


def _build_inputs(
    stored: list[np.ndarray], starts: np.ndarray, changes: list[Transform], inputs: InputFunction
) -> np.ndarray:
    """The rows of every group as inputs, turned as the group has them."""
    sample = inputs.of(stored[0][:1])
    x = _allocate_rows(int(starts[-1]), sample)
    together = min(BLOCK, max(1, CACHED // max(1, sample.nbytes)))
    for start, block, change in zip(starts, stored, changes, strict=False):
        for at in iterate_blocks(len(block), together):
            image = inputs.of(block[at])
            turned = np.rot90(image, change.turns, (-2, -1)) if change.turns else image
            x[start + at.start : start + at.stop] = turned
    return x


def _allocate_rows(rows: int, like: np.ndarray) -> np.ndarray:
    """Room for so many rows; that of a large table is a file without a name, mapped into memory,
    which the system writes out as it must, if there is room on the disk.
    """
    if like.ndim == 2 and rows * like[:1].nbytes >= IN_MEMORY:
        try:
            with TemporaryFile(prefix="coterie-", buffering=0) as file:  # the map keeps it
                return np.asarray(map_tensor(file, torch.from_numpy(like), rows))
        except CannotWrite:
            pass
    return np.empty((rows, *like.shape[1:]), like.dtype)


def _find_used(parts: list[ClientRows], n: int) -> np.ndarray:
    """The rows out of n that are in any part, ascending."""
    used = np.zeros(n, bool)
    for part in parts:
        used[part.concatenate()] = True
    return np.flatnonzero(used)


def _renumber_rows(
    pieces: Cuts, groups: np.ndarray, stored: list[np.ndarray], starts: np.ndarray
) -> Cuts:
    """Where the rows of the parts lie among those of their owners' groups."""
    if len(stored) == 1:  # parts that share an array go on sharing one
        seen: dict[int, np.ndarray] = {}

        def moved(rows: np.ndarray) -> np.ndarray:
            if id(rows) not in seen:
                seen[id(rows)] = np.searchsorted(stored[0], rows)
            return seen[id(rows)]

        return Cuts(*(part.map_rows(moved) for part in pieces))
    found = []
    for part in pieces:
        rows, group = part.concatenate(), np.repeat(groups, part.counts)
        new = np.empty_like(rows)
        for g, block in enumerate(stored):
            mine = group == g
            new[mine] = starts[g] + np.searchsorted(block, rows[mine])
        found.append(ClientRows.pack(new, part.counts))
    return Cuts(*found)
