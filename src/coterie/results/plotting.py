"""`.plot` of runs and comparisons. What draws is the business of reports, a room above this one: it
is made known here by `offer`, as `coterie` does when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput

Maker = Callable[[Path], Any]  # folder -> what draws its figures
MAKERS: dict[str, Maker] = {}


def offer(maker: Maker) -> None:
    """Let `.plot` draw with this."""
    MAKERS["figures"] = maker


def plots_of(folder: Path) -> Any:
    """What draws the figures of a folder."""
    if "figures" not in MAKERS:
        raise BadInput(
            "nothing draws yet: `import coterie` and load the folder with coterie.load, or use "
            f"coterie.reports.plots.Plots({str(folder)!r})"
        )
    return MAKERS["figures"](folder)
