"""The figures of a run or comparison in Python: `result.plot.curves()` is what a report draws, as a
matplotlib figure.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.scores import find_score
from coterie.core.errors import BadInput, suggest_name
from coterie.reports.accuracy_figures import build_clients_figure, build_curves, loss_curves
from coterie.reports.content import build_figures
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series
from coterie.reports.forest_figure import build_forest
from coterie.reports.gather import gather_evidence
from coterie.reports.histograms import accuracy_histogram, note_histogram
from coterie.reports.logged_values import find_declared


class Plots:
    """The figures of one folder; a notebook shows them, and `savefig` of each writes a file."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    @cached_property
    def evidence(self) -> Evidence:
        """What the folder holds, read once."""
        return gather_evidence([self.folder])

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """Every figure that a report of this folder has, as data by its key."""
        return {figure.key: figure for figure in build_figures(self.evidence)}

    @property
    def keys(self) -> list[str]:
        """What `figure` can draw here."""
        return list(self.figures)

    def curves(self, part: str = "") -> Any:
        """What clients are judged by, over rounds; on another part than the shown one if named."""
        known = self.evidence.first.experiment.schedule.measured
        if part and part not in known:
            raise BadInput(f"part = {part!r} was not measured{suggest_name(part, known)}")
        found = build_curves(self.evidence, part or self.evidence.first.part)
        return self._draw(found, f"no client has rows in the part '{part}'")

    def loss(self, view: str = "personal") -> Any:
        """The training loss over rounds, of own models or of another view, as "global"."""
        why = f"the loss of '{view}' models on training rows was not measured"
        return self._draw(loss_curves(self.evidence, view), why)

    def clients(self) -> Any:
        """Every client under every method."""
        return self._draw(build_clients_figure(self.evidence), "")

    def histogram(self, note: str = "", round: int | None = None) -> Any:
        """How many clients reach how much at the end; or, of a logged quantity such as "raw_steps",
        who wrote which number in a round, the middle one if none is named.
        """
        if not note:
            why = "histograms are of ten clients or more and of six methods at most"
            return self._draw(accuracy_histogram(self.evidence), why)
        known = {m: find_declared(records[0]) for m, records in self.evidence.records.items()}
        runs = {m: self.evidence.records[m] for m, notes in known.items() if note in notes}
        if not runs:
            every = dict.fromkeys(name for notes in known.values() for name in notes)
            raise BadInput(f"no method here logs '{note}'{suggest_name(note, every)}")
        means = known[next(iter(runs))][note]
        found = note_histogram(self.evidence, note, means, runs, round)
        return self._draw(found, f"no client logged '{note}' in round {round}")

    def forest(self) -> Any:
        """Differences of every method to Local and to FedAvg, with their intervals."""
        return self._draw(
            build_forest(self.evidence),
            "differences need local or fedavg among the methods, and another",
        )

    def scores(self) -> Any:
        """The other scores of the clients' own models at the end, as F1 and AUC."""
        return self._draw(build_scores(self.evidence), "these runs measured no other score in %")

    def figure(self, key: str) -> Any:
        """Any figure of the report, by its key."""
        if key not in self.figures:
            raise BadInput(f"there is no figure '{key}' here{suggest_name(key, self.figures)}")
        return self._draw(self.figures[key], "")

    def _draw(self, figure: Figure | None, why: str) -> Any:
        if figure is None:
            raise BadInput(why)
        from coterie.reports.draw import draw_figure  # matplotlib takes a second to load

        return draw_figure(figure, self.evidence.methods)


def build_scores(evidence: Evidence) -> Figure | None:
    """Scores that are shares, method beside method: means over clients and seeds."""
    found = {name: [r.run.scores() for r in records] for name, records in evidence.records.items()}
    known = dict.fromkeys(s for runs in found.values() for each in runs for s in each)
    shares = [score for score in map(find_score, known) if score.share]
    if not shares:
        return None
    labels = [score.label for score in shares]
    series = tuple(
        Series(
            name,
            list(labels),
            [100 * float(np.mean([each.get(s.name, np.nan) for each in runs])) for s in shares],
        )
        for name, runs in found.items()
    )
    low = [score.label for score in shares if not score.higher]
    note = "Means over the clients' own models at the last round, and over seeds."
    return Figure(
        key="scores",
        title=f"More scores on {evidence.first.part} rows",
        note=f"{note} Low is good of {' and '.join(low)}." if low else note,
        kind="bars",
        x="",
        y="%",
        series=series,
        section="accuracy",
    )
