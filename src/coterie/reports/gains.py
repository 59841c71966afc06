"""What clients gain over FedAvg and Local, and the figure of it."""

from __future__ import annotations

import numpy as np

from coterie.analysis.density import density
from coterie.analysis.gains import improvement, qoi, qoi_global
from coterie.analysis.numbers import there
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series

POINTS = 200  # of a density


def gains(evidence: Evidence) -> tuple[dict[str, np.ndarray], str]:
    """({method: gain [seeds, N] in points}, over what); empty without FedAvg or classes."""
    if not evidence.classed or "fedavg" not in evidence.records:
        return {}, ""
    base = evidence.measured("fedavg")
    others = [name for name in evidence.methods if name not in ("fedavg", "local")]
    if "local" in evidence.records:
        alone = evidence.measured("local")
        return {
            name: qoi(evidence.measured(name), base, alone) for name in others
        }, "the better of FedAvg and Local"
    return {name: qoi_global(evidence.measured(name), base) for name in others}, "FedAvg"


def gain_density(evidence: Evidence) -> Figure | None:
    """Who gains and who loses."""
    found, over = gains(evidence)
    found = {name: q for name, q in found.items() if len(there(q))}
    if not found:
        return None
    everything = np.concatenate([there(q) for q in found.values()])
    edge = max(2.0, 0.15 * float(np.ptp(everything)))
    grid = np.linspace(everything.min() - edge, everything.max() + edge, POINTS)
    series = []
    for name, q in found.items():
        figures = improvement(q)
        text = f"{name}: {figures.pui:.0f} % gain, {figures.pud:.0f} % lose"
        series.append(Series(name, grid.tolist(), density(q, grid).tolist(), text=[text] * POINTS))
    seeds = "" if len(evidence.seeds) == 1 else " All seeds together."
    note = (
        f"How the clients' gains over {over} are spread: right of 0 are clients the method "
        f"serves better.{seeds}"
    )
    if over == "FedAvg":
        note += " Local is not among the runs, so a client may still be better off alone."
    title = "Gain of the clients" if over != "FedAvg" else "Gain of the clients over FedAvg"
    x = f"gain over {over} (percentage points)"
    return Figure(
        "qoi",
        title,
        note,
        "density",
        x,
        "share of clients per point",
        tuple(series),
        section="accuracy",
    )
