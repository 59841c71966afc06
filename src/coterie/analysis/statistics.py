"""scipy's statistics, loaded when they are asked for: they take half a second."""

from __future__ import annotations

from typing import Any


def scipy_stats() -> Any:
    """The module scipy.stats."""
    from scipy import stats

    return stats
