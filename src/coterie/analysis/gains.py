"""What clients gain over FedAvg and local training.

Measures are those of Divi, "Unifying Distillation with Personalization in Federated Learning"
(Purdue, 2021), chapter 5. Accuracies are shares from 0 to 1, gains percentage points; a client
without a number (NaN) does not count.
"""

from __future__ import annotations

from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from coterie.analysis.nan_math import DIGITS, drop_nan, mean_of
from coterie.core.errors import BadInput


def qoi(personal: ArrayLike, fedavg: ArrayLike, local: ArrayLike, share: bool = True) -> np.ndarray:
    """Quantum of improvement P - max(G, L) of every client, in percentage points (5.2).

    share: False for a measure that is no share, as minus an error: gains are in its own unit.
    """
    return qoi_global(personal, np.maximum(fedavg, local), share)


def qoi_global(personal: ArrayLike, fedavg: ArrayLike, share: bool = True) -> np.ndarray:
    """P - G in percentage points: what the thesis tabulates, as it has no local accuracies."""
    if not share:
        gains = np.asarray(personal, dtype=float) - np.asarray(fedavg, dtype=float)
        return np.asarray(np.round(gains, DIGITS))
    for name, value in (("personal", personal), ("fedavg or local", fedavg)):
        found = drop_nan(value)
        if len(found) and not (found.min() >= 0 and found.max() <= 1):
            raise BadInput(
                f"{name} accuracies from {found.min():g} to {found.max():g}: give shares from 0 "
                "to 1, not percent"
            )
    gains = 100 * (np.asarray(personal, dtype=float) - np.asarray(fedavg, dtype=float))
    return np.asarray(np.round(gains, DIGITS))


class Improvement(NamedTuple):
    """Who gains and who loses, and how much; NaN where nobody does."""

    pui: float  # % of clients with a gain; a client with none is in neither
    pud: float  # % with a loss
    mpi: float  # median gain of those that gain
    api: float  # mean of it
    mpd: float  # median of the losses, negative
    apd: float  # mean of it


def improvement(qoi: ArrayLike) -> Improvement:
    """The six figures of (5.3) to (5.6)."""
    q = drop_nan(qoi)
    up, down = q[q > 0], q[q < 0]
    pui, pud = (100 * len(part) / len(q) if len(q) else 0.0 for part in (up, down))
    middle = [float(np.median(part)) if len(part) else nan for part in (up, down)]
    return Improvement(pui, pud, middle[0], mean_of(up), middle[1], mean_of(down))
