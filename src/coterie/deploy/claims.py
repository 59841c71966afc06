"""What a site says of its rows is not believed beyond a multiple of what the others say.

How many rows a site has decides its weight: in the mean of uploads, in the common scale of columns.
So nobody counts for more than `rules.claims` times the median of the sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.data.prepare.moments import Moments

MIN_SITES = 3  # of whom a median can tell who is unusual


def cap_sizes(sizes: np.ndarray, times: float) -> np.ndarray:
    """Training rows of every site as they count; who has none takes no part. times: 0 believes
    all.
    """
    there = sizes[sizes > 0]
    if not times or len(there) < MIN_SITES:
        return sizes
    return np.minimum(sizes, max(1, int(times * float(np.median(there)))))


def describe_caps(names: Sequence[str], sizes: np.ndarray, times: float) -> list[str]:
    """A line for each site that counts for less than it says."""
    capped = cap_sizes(sizes, times)
    return [
        f"{names[i]} says that it has {sizes[i]:,} training rows and counts for {capped[i]:,}: "
        f"{times:g} times the median of the sites (rules.claims)"
        for i in np.flatnonzero(capped < sizes).tolist()
    ]


def cap_moments(found: Mapping[int, Moments], times: float) -> dict[int, Moments]:
    """The same for sums of columns: a site that claims more cells has its sums scaled down."""
    if not times or len(found) < MIN_SITES:
        return dict(found)
    most = times * np.median([m.count for m in found.values()], axis=0)
    out = {}
    for i, m in found.items():
        share = np.minimum(1.0, most / np.maximum(m.count, 1))
        less = Moments(m.count * share, m.total * share, m.squares * share)
        out[i] = m if (share == 1).all() else less
    return out
