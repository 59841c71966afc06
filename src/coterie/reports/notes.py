"""Figures of notes, by the kind and the words that methods declare: no method is known here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coterie.analysis.numbers import means, there
from coterie.core.notes import Kind, Note
from coterie.reports.evidence import Evidence, Record
from coterie.reports.figures import (
    QUARTILES,
    Figure,
    Series,
    client_dots,
    over_rounds,
    spread_words,
    whose,
)
from coterie.reports.histograms import note_histogram
from coterie.reports.note_maps import grid_figures, mixing_figures, vector_figures
from coterie.reports.note_words import Runs, axis_of, caption_of, key_of, scale_of, title_of
from coterie.reports.noted import by_round, declarations, latest


def note_figures(evidence: Evidence) -> list[Figure]:
    """A figure for every declared note, one for all methods that declare it alike."""
    found: dict[tuple[str, Note], dict[str, Sequence[Record]]] = {}
    for method, records in evidence.records.items():
        for name, note in declarations(records[0]).items():
            found.setdefault((name, note), {})[method] = records
    made = [DRAWN[note.kind](evidence, name, note, runs) for (name, note), runs in found.items()]
    return sorted((f for figures in made for f in figures), key=lambda f: f.section)


# Numbers by round


def _lines(note: Note, name: str, runs: Runs, scale: float, bands: bool) -> tuple[Series, ...]:
    """A line per method; bands over the clients of one seed only where asked."""
    made = []
    for method, records in runs.items():
        series = over_rounds([by_round(r, name) for r in records], method, scale)
        bare = len(records) == 1 and not bands
        made.append(_logs(series._replace(low=(), high=()) if bare else series, note.log))
    return tuple(s for s in made if len(there(s.y)))


def _logs(series: Series, wanted: bool) -> Series:
    def log(values: Sequence[float]) -> list[float]:
        numbers = np.asarray(values, dtype=float)
        return np.log10(np.where(numbers > 0, numbers, np.nan)).tolist()

    if not wanted:
        return series
    return series._replace(y=log(series.y), low=log(series.low), high=log(series.high))


def _by_round(
    name: str, note: Note, runs: Runs, said: str, y: str, series: tuple[Series, ...]
) -> list[Figure]:
    if not series:
        return []
    caption, title = caption_of(note.meaning, said), f"{title_of(note)} by round"
    key = key_of(name, runs)
    return [Figure(key, title, caption, "lines", "round", y, series, section="inside")]


def _course(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """One number per client: its mean by round, and its histogram where one is declared."""
    band = spread_words(len(evidence.seeds), QUARTILES)
    said = f"Mean over the clients that noted it in a round; the band {band}."
    series = _lines(note, name, runs, scale_of(note), bands=True)
    found = _by_round(name, note, runs, said, axis_of(note), series)
    spread = note_histogram(evidence, name, note, runs) if note.histogram else None
    return [*found, spread] if spread else found


def _share(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """Yes or no of each client: the share of clients by round."""
    seeds = len(evidence.seeds)
    band = f" The band {spread_words(seeds)}." if seeds > 1 else ""
    said = f"Share of the clients that noted it in a round.{band}"
    series = _lines(note, name, runs, 100, bands=False)
    return _by_round(name, note, runs, said, "clients (%)", series)


def _server(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """One number of the server by round."""
    seeds = len(evidence.seeds)
    band = f" The band {spread_words(seeds)}." if seeds > 1 else ""
    series = _lines(note, name, runs, scale_of(note), bands=False)
    said = f"Noted by the server after every round.{band}"
    return _by_round(name, note, runs, said, axis_of(note), series)


def _pair(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """Before and after, by round; a figure per method."""
    made = []
    band = spread_words(len(evidence.seeds), "the middle half of the values (quartiles)")
    for method, records in runs.items():
        several = by_round(records[0], f"{name}_before")[1].shape[1] > 1
        series: list[Series] = []
        for when in ("before", "after"):
            part = _lines(note, f"{name}_{when}", {when: records}, scale_of(note), bands=several)
            series += part
        said = f"Means before and after; the band {band}." if several or len(records) > 1 else ""
        for figure in _by_round(name, note, {method: records}, said, axis_of(note), tuple(series)):
            made.append(figure._replace(title=f"{figure.title}: {method}"))
    return made


# Client by client


def _final(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """The latest number of every client."""
    values = {}
    for method, records in runs.items():
        block = scale_of(note) * np.stack([latest(record, name) for record in records])
        values[method] = means(block, 0) if evidence.fixed_split else block[0]
    values = {method: v for method, v in values.items() if len(there(v))}
    if not values:
        return []
    series, x = client_dots(evidence, values)
    caption = caption_of(
        note.meaning, f"A dot is what was noted last of a client. {whose(evidence)}"
    )
    series = tuple(_logs(s, note.log) for s in series)
    key, title = key_of(name, runs), f"{title_of(note)}, client by client"
    return [Figure(key, title, caption, "dots", x, axis_of(note), series, section="inside")]


def _none(evidence: Evidence, name: str, note: Note, runs: Runs) -> list[Figure]:
    """A view has its words in the table of views."""
    return []


DRAWN: dict[Kind, Callable[[Evidence, str, Note, Runs], list[Figure]]] = {
    Kind.MATRIX: mixing_figures,
    Kind.GROUPS: mixing_figures,
    Kind.VECTORS: vector_figures,
    Kind.COURSE: _course,
    Kind.SHARE: _share,
    Kind.FINAL: _final,
    Kind.SERVER: _server,
    Kind.PAIR: _pair,
    Kind.GRID: grid_figures,
    Kind.VIEW: _none,
}
