"""Figures of logged quantities, by the kind and the words that methods declare: no method is known
here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.analysis.nan_math import drop_nan, nan_mean
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.reports.evidence import Evidence, RunRecord
from coterie.reports.figures import (
    QUARTILES,
    Figure,
    Series,
    build_client_dots,
    build_round_series,
    describe_shown_clients,
    describe_spread,
)
from coterie.reports.histograms import note_histogram
from coterie.reports.logged_labels import Runs, axis_of, caption_of, key_of, scale_of, title_of
from coterie.reports.logged_maps import (
    build_grid_figures,
    build_mixing_figures,
    build_vector_figures,
)
from coterie.reports.logged_values import find_declared, latest_values, values_by_round


def build_logged_figures(evidence: Evidence) -> list[Figure]:
    """A figure for every declared quantity, one for all methods that declare it alike."""
    found: dict[tuple[str, LoggedQuantity], dict[str, Sequence[RunRecord]]] = {}
    for method, records in evidence.records.items():
        for name, note in find_declared(records[0]).items():
            found.setdefault((name, note), {})[method] = records
    made = [BUILDERS[note.kind](evidence, name, note, runs) for (name, note), runs in found.items()]
    return sorted((f for figures in made for f in figures), key=lambda f: f.section)


# Numbers by round


def _method_series(
    note: LoggedQuantity, name: str, runs: Runs, scale: float, bands: bool
) -> tuple[Series, ...]:
    """A line per method; bands over the clients of one seed only where asked."""
    made = []
    for method, records in runs.items():
        series = build_round_series([values_by_round(r, name) for r in records], method, scale)
        bare = len(records) == 1 and not bands
        made.append(_to_log_scale(series._replace(low=(), high=()) if bare else series, note.log))
    return tuple(s for s in made if len(drop_nan(s.y)))


def _to_log_scale(series: Series, wanted: bool) -> Series:
    def log(values: Sequence[float]) -> list[float]:
        numbers = np.asarray(values, dtype=float)
        return np.log10(np.where(numbers > 0, numbers, np.nan)).tolist()

    if not wanted:
        return series
    return series._replace(y=log(series.y), low=log(series.low), high=log(series.high))


def _round_figure(
    name: str, note: LoggedQuantity, runs: Runs, said: str, y: str, series: tuple[Series, ...]
) -> list[Figure]:
    if not series:
        return []
    caption, title = caption_of(note.meaning, said), f"{title_of(note)} by round"
    key = key_of(name, runs)
    return [Figure(key, title, caption, "lines", "round", y, series, section="inside")]


def _course_figures(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs
) -> list[Figure]:
    """One number per client: its mean by round, and its histogram where one is declared."""
    band = describe_spread(len(evidence.seeds), QUARTILES)
    said = f"Mean over the clients that logged it in a round; the band {band}."
    series = _method_series(note, name, runs, scale_of(note), bands=True)
    found = _round_figure(name, note, runs, said, axis_of(note), series)
    spread = note_histogram(evidence, name, note, runs) if note.histogram else None
    return [*found, spread] if spread else found


def _share_figures(evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs) -> list[Figure]:
    """Yes or no of each client: the share of clients by round."""
    seeds = len(evidence.seeds)
    band = f" The band {describe_spread(seeds)}." if seeds > 1 else ""
    said = f"Share of the clients that logged it in a round.{band}"
    series = _method_series(note, name, runs, 100, bands=False)
    return _round_figure(name, note, runs, said, "clients (%)", series)


def _server_figures(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs
) -> list[Figure]:
    """One number of the server by round."""
    seeds = len(evidence.seeds)
    band = f" The band {describe_spread(seeds)}." if seeds > 1 else ""
    series = _method_series(note, name, runs, scale_of(note), bands=False)
    said = f"Logged by the server after every round.{band}"
    return _round_figure(name, note, runs, said, axis_of(note), series)


def _pair_figures(evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs) -> list[Figure]:
    """Before and after, by round; a figure per method."""
    made = []
    band = describe_spread(len(evidence.seeds), "the middle half of the values (quartiles)")
    for method, records in runs.items():
        several = values_by_round(records[0], f"{name}_before")[1].shape[1] > 1
        series: list[Series] = []
        for when in ("before", "after"):
            part = _method_series(
                note, f"{name}_{when}", {when: records}, scale_of(note), bands=several
            )
            series += part
        said = f"Means before and after; the band {band}." if several or len(records) > 1 else ""
        for figure in _round_figure(
            name, note, {method: records}, said, axis_of(note), tuple(series)
        ):
            made.append(figure._replace(title=f"{figure.title}: {method}"))
    return made


# Client by client


def _final_figures(evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs) -> list[Figure]:
    """The latest number of every client."""
    values = {}
    for method, records in runs.items():
        block = scale_of(note) * np.stack([latest_values(record, name) for record in records])
        values[method] = nan_mean(block, 0) if evidence.fixed_partition else block[0]
    values = {method: v for method, v in values.items() if len(drop_nan(v))}
    if not values:
        return []
    series, x = build_client_dots(evidence, values)
    caption = caption_of(
        note.meaning,
        f"A dot is what was logged last of a client. {describe_shown_clients(evidence)}",
    )
    series = tuple(_to_log_scale(s, note.log) for s in series)
    key, title = key_of(name, runs), f"{title_of(note)}, client by client"
    return [Figure(key, title, caption, "dots", x, axis_of(note), series, section="inside")]


def _no_figures(evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs) -> list[Figure]:
    """A view has its words in the table of views."""
    return []


BUILDERS: dict[QuantityKind, Callable[[Evidence, str, LoggedQuantity, Runs], list[Figure]]] = {
    QuantityKind.MATRIX: build_mixing_figures,
    QuantityKind.GROUPS: build_mixing_figures,
    QuantityKind.VECTORS: build_vector_figures,
    QuantityKind.COURSE: _course_figures,
    QuantityKind.SHARE: _share_figures,
    QuantityKind.FINAL: _final_figures,
    QuantityKind.SERVER: _server_figures,
    QuantityKind.PAIR: _pair_figures,
    QuantityKind.GRID: build_grid_figures,
    QuantityKind.VIEW: _no_figures,
}
