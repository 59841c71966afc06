"""scipy's statistics, loaded when they are asked for: they take half a second."""

from __future__ import annotations

from typing import Any


def scipy_stats() -> Any:
    """The module scipy.stats."""
    from scipy import stats

    return stats


def student_quantile(share: float, freedom: int) -> float:
    """The value below which so large a share of Student's distribution lies; loading scipy's
    statistics for it would take longer.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))
