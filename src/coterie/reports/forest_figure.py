"""The differences that the answer speaks of: every method against Local and against FedAvg."""

from __future__ import annotations

from math import nan

from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series

BASELINES = ("local", "fedavg")


def build_forest(evidence: Evidence) -> Figure | None:
    """The mean difference of every method with its interval; none without a baseline."""
    comparison, measure = evidence.comparison, evidence.comparison.measure
    order = sorted(evidence.rows, key=lambda row: -measure.sign * row.mean)
    bases = [base for base in BASELINES if base in evidence.records]
    made = []
    for base in bases:
        names = [row.method for row in order]
        found = [comparison.difference(name, base) for name in names]
        own = names.index(base)  # a gap, so that all series have the same order
        found[own] = found[own]._replace(mean=nan, low=nan, high=nan)
        mean, low, high = (
            [measure.scale * float(d[k]) for d in found]
            for k in range(3)  # as Difference begins
        )
        text = [f"{n} against {base}: {measure.gap(d)}" for n, d in zip(names, found, strict=True)]
        made.append(Series(f"against {base}", names, mean, low, high, text))
    if not made or len(order) < 2:
        return None
    one = comparison.difference(order[0].method, order[-1].method)
    unit = measure.points.strip()
    note = (
        f"Mean difference in {evidence.first.part} {measure.label}, client by client, with its "
        f"95 % interval (bootstrap over {one.n:,} {one.population}); right of 0 is better. An "
        "interval that contains 0 shows no difference."
    )
    if len(bases) > 1:
        note += f" {' and '.join(bases)} have one mark each: none is compared with itself."
    return Figure(
        key="forest",
        title=f"Difference to {' and to '.join(bases)}",
        note=note,
        kind="forest",
        x="",
        y=f"difference ({unit})" if unit else "difference (above 0 is better)",
        series=tuple(made),
        section="answer",
    )
