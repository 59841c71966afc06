"""Methods of a comparison that were given what no federation knows of itself."""

from __future__ import annotations

from coterie.results.comparison import Comparison


def find_informed(comparison: Comparison) -> dict[str, str]:
    """{method: what it was told}: the oracle's groups, and IFCA's number of models where that is
    the true one.
    """
    groups = len(set(comparison.first.about["groups"]))
    if groups < 2:
        return {}
    found = {}
    for name, runs in comparison.runs.items():
        experiment = runs[0].experiment
        if experiment.method == "oracle":
            found[name] = "the groups"
        if experiment.method == "ifca" and experiment.options.get("clusters", 2) == groups:
            found[name] = "the number of groups"
    return found
