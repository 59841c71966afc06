"""How sure a share of few rows is."""

from __future__ import annotations


def share_interval(right: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share, such as the accuracy on so many test rows."""
    if not rows:
        return float("nan"), float("nan")
    from scipy.stats import binomtest

    found = binomtest(right, rows).proportion_ci(level, method="wilson")
    return float(found.low), float(found.high)
