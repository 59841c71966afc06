"""Averages that a few hostile uploads cannot move far.

median, trimmed: coordinate by coordinate. Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust
Distributed Learning: Towards Optimal Statistical Rates. ICML 2018. Here with weights: the median is
the value at which half of the weight is reached, and trimming takes a share of the weight off
either end.

krum: the uploads whose changes have the nearest neighbours. Blanchard, El Mhamdi, Guerraoui,
Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017
(Multi-Krum: of m uploads the m - f of lowest score stay).

norm: no change is longer than the median length. Sun, Kairouz, Suresh, McMahan: Can You Really
Backdoor Federated Learning? 2019, with the round's median as the bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.method import Average, Tree
from coterie.core.point import mean, tree_map

MIN_UPLOADS = 3  # uploads below which nobody can be told from the others


def build_average(rule: str, hostile: float) -> Average:
    """The average that stands for the weighted mean: "median", "trimmed", else the mean itself."""
    if rule not in ("median", "trimmed"):
        return mean
    trim = 0.5 if rule == "median" else hostile

    def average(stacked: Tree, weights: Tensor) -> Tree:
        rows = weights if weights.dim() == 2 else weights[None]
        made = tree_map(lambda a: _average_leaf(a, rows, trim), stacked)
        return made if weights.dim() == 2 else tree_map(lambda a: a[0], made)

    return average


def _average_leaf(stacked: Tensor, rows: Tensor, trim: float) -> Tensor:
    """One array [m, ...] averaged by rows of weights [k, m], on the processor."""
    if not stacked.is_floating_point():
        return mean(stacked, rows)
    flat = stacked.cpu().reshape(len(stacked), -1)
    order = flat.argsort(0)
    values = flat.gather(0, order)
    made = torch.stack([_trimmed_mean(values, order, row, trim) for row in rows.cpu()])
    return made.reshape(len(rows), *stacked.shape[1:]).to(stacked)


def _trimmed_mean(values: Tensor, order: Tensor, weights: Tensor, trim: float) -> Tensor:
    """Sorted values [m, d] averaged by what is left of their weights; a trim of one half leaves
    the median.
    """
    total = weights.sum().double()
    share = (weights.double() / total)[order]
    until = share.cumsum(0)
    if trim >= 0.5:
        at = (until >= 0.5 - 1e-9).to(torch.int8).argmax(0)
        low = values.gather(0, at[None])[0]
        # exactly half on either side: the middle of the two values
        reached = until.gather(0, at[None])[0]
        later = (share > 0) & (until > 0.5 + 1e-9)
        high = values.gather(0, later.to(torch.int8).argmax(0)[None])[0]
        middle = torch.where((reached - 0.5).abs() <= 1e-9, (low + high) / 2, low)
        return middle * total.to(values.dtype)
    kept = (until.clamp(max=1 - trim) - (until - share).clamp(min=trim)).clamp(min=0)
    return (kept * values).sum(0) / kept.sum(0) * total


def select_krum(changes: Tensor, hostile: float) -> Tensor:
    """The places [m - f], in order, of the uploads that Multi-Krum keeps; f is `hostile` m."""
    m = len(changes)
    f = min(int(hostile * m + 1e-9), (m - MIN_UPLOADS) // 2)
    if f < 1:
        return torch.arange(m)
    apart = torch.cdist(changes, changes, compute_mode="donot_use_mm_for_euclid_dist").square()
    apart.fill_diagonal_(torch.inf)
    scores = apart.sort(1).values[:, : m - f - 2].sum(1)
    kept: Tensor = scores.argsort(stable=True)[: m - f].sort().values
    return kept


def compute_clip_factors(changes: Tensor) -> Tensor:
    """The factors [m] that make no change longer than the median length."""
    lengths = changes.norm(dim=1)
    tiny = torch.finfo(lengths.dtype).tiny
    factors: Tensor = (lengths.median() / lengths.clamp(min=tiny)).clamp(max=1)
    return factors
