"""Figures on what accuracy costs: bytes, and time in simulated systems."""

from __future__ import annotations

import numpy as np

from coterie.analysis.significance import seed_interval
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series, axis_title, measure_title
from coterie.results.costs import SYSTEMS, Axis, accuracy_against

UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
NEGLIGIBLE = 0.01  # of the largest traffic: a method below is drawn as a level


def _cost_curve(
    evidence: Evidence, name: str, by: Axis, scale: float, system: str = "slow uplink"
) -> Series:
    """Mean accuracy against what was spent, both averaged over seeds round by round."""
    found = [
        accuracy_against(r.slim, by, evidence.first.part, system=system)
        for r in evidence.records[name]
    ]
    length = min(len(x) for x, _ in found)  # a seed that was stopped is shorter
    x = np.mean([x[:length] for x, _ in found], axis=0) * scale
    ends = [
        seed_interval(at) for at in evidence.scale * np.stack([y[:length] for _, y in found], 1)
    ]
    return Series(name, x.tolist(), [e[0] for e in ends])


def build_cost_figures(evidence: Evidence) -> list[Figure]:
    """Accuracy against bytes, and against time in three simulated systems."""
    y, seeds = (
        axis_title(evidence),
        "" if len(evidence.seeds) == 1 else f" Means over {len(evidence.seeds)} seeds.",
    )
    spent = [_cost_curve(evidence, name, "bytes", 1.0) for name in evidence.methods]
    most = max((x for s in spent for x in s.x), default=0.0)
    unit, size = next((u, b) for u, b in UNITS.items() if most >= b or b == 1)
    spent, most = [s._replace(x=[x / size for x in s.x]) for s in spent], most / size
    silent = [s.name for s in spent if max(s.x) <= NEGLIGIBLE * most]
    level = [
        Series(s.name, [0.0, most], [s.y[-1]] * 2) if s.name in silent and most else s
        for s in spent
    ]
    better = "up" if evidence.judged.higher else "down"
    note = (
        f"Bytes that travelled up to a round, to and from every client by itself; {better} "
        f"and to the left is better.{seeds}"
    )
    if silent and most:
        note += f" {', '.join(silent)}: next to nothing is sent; the level line is the last round."
    made = [
        Figure(
            "bytes",
            f"{y.partition(' (')[0].capitalize()} against traffic",
            note,
            "lines",
            f"traffic ({unit})",
            y,
            tuple(level),
        )
    ]
    for system, (rho, _, mu) in SYSTEMS.items():
        speed = (
            "all clients compute equally fast"
            if np.isinf(mu)
            else "clients compute at different speeds and the slowest decides"
        )
        upload = f"{rho:g} times as long as a download" if rho != 1 else "as long as a download"
        note = (
            f"Simulated: an upload of a model takes {upload}, uploads come one after another, "
            f"and {speed}.{seeds}"
        )
        series = tuple(_cost_curve(evidence, name, "time", 1, system) for name in evidence.methods)
        title = f"{measure_title(evidence)} against time: {system}"
        key = f"time-{system.replace(' ', '-')}"
        made.append(
            Figure(key, title, note, "lines", "simulated time (downloads of one model)", y, series)
        )
    return [figure._replace(section="cost") for figure in made]
