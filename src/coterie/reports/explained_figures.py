"""What a report says of the columns that models use."""

from __future__ import annotations

from coterie.analysis.scores import find_score
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series
from coterie.results.explained import ExplainedColumns, read_explained

MAX_COLUMNS = 20


def build_explained_figures(evidence: Evidence) -> list[Figure]:
    """The importance of columns, for every run of which it was measured; of one seed each."""
    found = []
    for name, records in evidence.records.items():
        known = next(filter(None, (read_explained(r.run.folder) for r in records)), None)
        if known is not None and known.columns:
            found.append(_build_importance(name, known))
    return found


def _build_importance(method: str, known: ExplainedColumns) -> Figure:
    score, shown = find_score(known.measure), known.columns[:MAX_COLUMNS]
    scale = 100 if score.share else 1
    mean, low, high = ([scale * float(c[k]) for c in shown] for k in (1, 2, 3))
    some = "" if known.clients == known.of else f", drawn of {known.of:,}"
    more = len(known.columns) - len(shown)
    note = (
        f"How much worse {method}'s models do on test rows where the cells of one column change "
        f"places: the mean of {known.clients:,} clients{some} ({known.rows:,} rows), and the "
        "middle half of them (quartiles). About 0: the models do not need the column. "
        "`coterie explain` says more, client by client."
    )
    if more > 0:
        note += f" {more:,} less important columns are not shown."
    return Figure(
        key=f"importance-{method}",
        title=f"What the models look at: {method}",
        note=" ".join([note, *known.sureness]),
        kind="forest",
        x="",
        y=f"{score.label} lost ({'points' if score.share else 'its own unit'})",
        series=(Series("importance", [c.name for c in shown], mean, low, high),),
        section="inside",
    )
