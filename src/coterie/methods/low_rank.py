"""Updates of little rank: of every matrix only the largest singular values, up to a share of its
energy, the sum of their squares.
"""

import torch
from torch import Tensor

from coterie.core.point import Leaves, Vector


def truncate(update: Vector, energy: Tensor) -> tuple[Vector, Tensor]:
    """Every matrix of an update by its fewest singular values that hold `energy` of it, and how
    many numbers their factors have as a share of the update's. Kernels count as matrices with a row
    for each output; vectors stay as they are.
    """
    params: Leaves = {}
    sent, size = torch.zeros_like(energy), 0
    for name, a in update.params.items():
        params[name], numbers = _truncate_matrix(a, energy) if a.dim() > 1 else (a, a.numel())
        sent, size = sent + numbers, size + a.numel()
    return Vector(params, update.fresh), sent / size


def _truncate_matrix(a: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    matrix = a.flatten(1)
    # an update that is not finite stays so: its decomposition would raise an error
    u, s, v = torch.linalg.svd(matrix.nan_to_num(0.0, 0.0, 0.0), full_matrices=False)
    squares = s.square()
    kept = (squares.cumsum(0) - squares < energy * squares.sum()).to(a)  # those before hold less
    rows, columns = matrix.shape
    numbers = (kept.sum() * (rows + columns + 1)).clamp(max=a.numel())
    whole = ((u * (s * kept)) @ v).reshape(a.shape)
    return torch.where(a.isfinite(), whole, a), numbers
