"""What clients gain over FedAvg and Local, and the figure of it."""

from __future__ import annotations

import numpy as np

from coterie.analysis.density import density
from coterie.analysis.gains import improvement, qoi, qoi_global
from coterie.analysis.nan_math import drop_nan, nan_mean
from coterie.core.task import find_task
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series

DENSITY_POINTS = 200  # of a density


def compute_gains(evidence: Evidence) -> tuple[dict[str, np.ndarray], str]:
    """({method: gain [seeds, N]}, over what); in points where the measure is a share; empty without
    FedAvg, and of vectors of numbers.
    """
    if not find_task(evidence.first.task).scores or "fedavg" not in evidence.records:
        return {}, ""
    sign, share = evidence.judged.sign, evidence.judged.share
    base = sign * evidence.client_values("fedavg")
    others = [name for name in evidence.methods if name not in ("fedavg", "local")]
    if "local" in evidence.records:
        alone = sign * evidence.client_values("local")
        return {
            name: qoi(sign * evidence.client_values(name), base, alone, share) for name in others
        }, "the better of FedAvg and Local"
    return {
        name: qoi_global(sign * evidence.client_values(name), base, share) for name in others
    }, "FedAvg"


def gain_unit(evidence: Evidence) -> str:
    """What gains are counted in."""
    return "percentage points" if evidence.judged.share else evidence.judged.label


def build_gain_density(evidence: Evidence) -> Figure | None:
    """Who gains and who loses."""
    found, over = compute_gains(evidence)
    if evidence.fixed_partition:
        found = {name: nan_mean(q, 0) for name, q in found.items()}
    found = {name: q for name, q in found.items() if len(drop_nan(q))}
    if not found:
        return None
    everything = np.concatenate([drop_nan(q) for q in found.values()])
    edge = max(2.0 * evidence.judged.share, 0.15 * float(np.ptp(everything)), 1e-9)
    grid = np.linspace(everything.min() - edge, everything.max() + edge, DENSITY_POINTS)
    series = []
    for name, q in found.items():
        figures = improvement(q)
        text = f"{name}: {figures.pui:.0f} % gain, {figures.pud:.0f} % lose"
        series.append(
            Series(name, grid.tolist(), density(q, grid).tolist(), text=[text] * DENSITY_POINTS)
        )
    averaged = (
        "Seeds are averaged for each client" if evidence.fixed_partition else "All seeds together"
    )
    seeds = "" if len(evidence.seeds) == 1 else f" {averaged}."
    note = (
        f"How the clients' gains over {over} are spread: right of 0 are clients the method "
        f"serves better.{seeds}"
    )
    if over == "FedAvg":
        note += " Local is not among the runs, so a client may still be better off alone."
    title = "Gain of the clients" if over != "FedAvg" else "Gain of the clients over FedAvg"
    x = f"gain over {over} ({gain_unit(evidence)})"
    return Figure(
        "qoi",
        title,
        note,
        "density",
        x,
        "share of clients per point" if evidence.judged.share else "density",
        tuple(series),
        section="accuracy",
    )
