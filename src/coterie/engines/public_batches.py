"""The public rows, which the server and all clients hold alike."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.rng import stream
from coterie.data.dataset import Public


def draw_public_rows(public: Public, seed: int, stage: str, round: int, rows: int) -> np.ndarray:
    """The rows of the public set that everybody uses in this round; 0: all of them."""
    total = len(public.x)
    if not rows:
        return np.arange(total)
    return stream(seed, "public", stage, round).choice(total, min(rows, total), replace=False)


def public_tensors(public: Public, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The inputs and labels of the public set; the labels are zeros where it has none."""
    labels = torch.zeros(len(public.x), dtype=torch.int64) if public.y is None else public.y
    return public.x.to(dtype) if public.x.is_floating_point() else public.x, labels
