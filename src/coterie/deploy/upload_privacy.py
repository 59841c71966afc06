"""Clipping and noise on what leaves a site.

What an upload tells beyond what the site was sent is its change (see core/change). All changes of
one upload together are one long vector c. It is replaced by

    c min(1, clip / |c|) + noise clip N(0, I),

so its Euclidean norm before noise is at most `clip`, whatever the data, and one upload is a
Gaussian mechanism of L2 sensitivity 2 clip (any upload against any other) with deviation noise
clip. Running statistics of normalization layers are real numbers and are treated alike. Whole
numbers of a model (counts of batches) and those that were sent (ids) are left as they are; any
other comes from the rows, as IFCA's choice of a model does, and is refused where there is noise.

The client's own state, which stays at home, is neither clipped nor noised. The reference is what
THIS client received, so the mechanism does not depend on how the server averages. No privacy budget
is counted over rounds.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.errors import BadInput
from coterie.core.method import Tree
from coterie.core.point import Point, Vector
from coterie.core.updates import compute_updates, origin_of


def secure_rng() -> np.random.Generator:
    """Noise that nobody can draw again: a named stream could be subtracted by whoever knows the
    run's seed.
    """
    return np.random.Generator(np.random.PCG64(int.from_bytes(os.urandom(32), "little")))


def protect(
    upload: Tree, payload: Tree, clip: float, noise: float, rng: np.random.Generator
) -> Tree:
    """The upload with its change clipped to the norm `clip` and Gaussian noise of deviation `noise
    * clip` added; 0: as it is.
    """
    if clip <= 0:
        return upload
    if noise:
        check_covered(upload, payload)
    leaves, spec = pytree.tree_flatten(upload)
    origins = pytree.tree_leaves(origin_of(upload, payload))
    moves = [a - b if a.is_floating_point() else a for a, b in zip(leaves, origins, strict=True)]
    length = change_norm(upload, payload)
    factor = 1.0 if length <= clip else clip / length

    def covered(change: Tensor, origin: Tensor) -> Tensor:
        if not change.is_floating_point():
            return change
        drawn = (
            torch.from_numpy(rng.standard_normal(tuple(change.shape)))
            if noise
            else torch.zeros(change.shape)
        )
        return origin + (factor * change.double() + noise * clip * drawn).to(change.dtype)

    return pytree.tree_unflatten([covered(c, b) for c, b in zip(moves, origins, strict=True)], spec)


def check_covered(upload: Tree, payload: Tree) -> None:
    """Refuse an upload with whole numbers that noise does not cover."""
    known = list_arrays(payload)
    for array in list_arrays(upload):
        whole = not array.is_floating_point() and array.numel()
        if whole and not any(torch.equal(array, sent) for sent in known):
            raise BadInput(
                "uploads of this method hold a whole number that comes from the rows (a choice), "
                "and privacy.noise does not cover it: leave noise out, or choose another method"
            )


def list_arrays(tree: Tree) -> list[Tensor]:
    """The arrays of a tree that are not part of a model."""
    leaves = pytree.tree_leaves(tree, is_leaf=lambda part: isinstance(part, Point | Vector))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def change_norm(upload: Tree, payload: Tree) -> float:
    """The Euclidean norm of what an upload tells beyond its payload."""
    one = pytree.tree_map(lambda t: t[None], (upload, origin_of(upload, payload)))
    return float(compute_updates(*one).square().sum()) ** 0.5
