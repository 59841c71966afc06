"""`.plot` of runs and comparisons. What draws is the business of reports, a package above this one:
it is made known here by `offer`, as `coterie` does when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput

PlotMaker = Callable[[Path], Any]  # folder -> what draws its figures
PLOT_MAKERS: dict[str, PlotMaker] = {}


def register_plots(maker: PlotMaker) -> None:
    """Let `.plot` draw with this."""
    PLOT_MAKERS["figures"] = maker


def plots_of(folder: Path) -> Any:
    """What draws the figures of a folder."""
    if "figures" not in PLOT_MAKERS:
        raise BadInput(
            "nothing draws yet: `import coterie` and load the folder with coterie.load, or use "
            f"coterie.reports.plots.Plots({str(folder)!r})"
        )
    return PLOT_MAKERS["figures"](folder)
