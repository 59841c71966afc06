"""Clipping and noise on what leaves a site.

What an upload tells beyond what the site was sent is its change: for every model (`Point`) in the
upload, the difference to the model of the same layers and shapes that came with the payload (to the
first of several, where a stack was sent); for every other array of real numbers (gradients, scores,
soft predictions), and for a model to which nothing that was sent corresponds, the array itself. All
changes of one upload together are one long vector c. It is replaced by

    c min(1, clip / |c|) + noise clip N(0, I),

so its Euclidean norm before noise is at most `clip`, whatever the data, and one upload is a
Gaussian mechanism of L2 sensitivity 2 clip (any upload against any other) with deviation noise
clip. Running statistics of normalization layers are real numbers and are treated alike. Whole
numbers (ids, counts of batches) are left as they are: no method derives them from rows of data.

The client's own state, which stays at home, is neither clipped nor noised. The reference is what
THIS client received, so the mechanism does not depend on how the server averages. No privacy budget
is counted over rounds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.method import Tree
from coterie.core.point import Point


def entropy() -> np.random.Generator:
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
    leaves, spec = pytree.tree_flatten(upload)
    origins = pytree.tree_leaves(_origin(upload, payload))
    changes = [a - b if a.is_floating_point() else a for a, b in zip(leaves, origins, strict=True)]
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

    return pytree.tree_unflatten(
        [covered(c, b) for c, b in zip(changes, origins, strict=True)], spec
    )


def change_norm(upload: Tree, payload: Tree) -> float:
    """The Euclidean norm of what an upload tells beyond its payload."""
    pairs = zip(
        pytree.tree_leaves(upload), pytree.tree_leaves(_origin(upload, payload)), strict=True
    )
    return (
        float(
            sum(float((a - b).double().square().sum()) for a, b in pairs if a.is_floating_point())
        )
        ** 0.5
    )


def _origin(upload: Tree, payload: Tree) -> Tree:
    """What each array of an upload is measured from: the payload's model where there is one, else
    zero.
    """
    known = list(_points(payload))

    def origin(part: Any) -> Any:
        if not isinstance(part, Point):
            return torch.zeros_like(part)
        shape = _shapes(part)
        for point in known:
            if _shapes(point) == shape:
                return point
        for stacked in known:
            if all(t.dim() and len(t) for t in pytree.tree_leaves(stacked)):
                first = pytree.tree_map(lambda t: t[0], stacked)
                if _shapes(first) == shape:
                    return first
        return pytree.tree_map(torch.zeros_like, part)

    return pytree.tree_map(origin, upload, is_leaf=lambda part: isinstance(part, Point))


def _points(tree: Tree) -> Iterator[Point]:
    for part in pytree.tree_leaves(tree, is_leaf=lambda part: isinstance(part, Point)):
        if isinstance(part, Point):
            yield part


def _shapes(point: Point) -> dict[str, tuple[int, ...]]:
    return {k: tuple(t.shape) for k, t in (point.params | point.buffers).items()}
