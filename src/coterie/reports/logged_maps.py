"""Heat maps of logged quantities: who learns from whom, vectors of clients, grids of choices."""

from __future__ import annotations

import numpy as np

from coterie.analysis.nan_math import nan_mean
from coterie.core.quantities import LoggedQuantity, QuantityKind
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Heat
from coterie.reports.logged_labels import Runs, axis_of, caption_of, key_of, scale_of, title_of
from coterie.reports.logged_values import (
    find_cell_axes,
    find_cells,
    read_server_frames,
    read_square_frames,
)
from coterie.reports.matrices import MAX_GROUPS, build_mixing_heat, build_vector_heat

NEGLIGIBLE = 1e-4  # weights on others below count as none


def build_mixing_figures(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs
) -> list[Figure]:
    """Who learns from whom, a frame per round; a figure per method."""
    made = []
    groups = np.asarray(evidence.first.about["groups"])
    for method, records in runs.items():
        frames = read_square_frames(records[0], name, note)
        if not frames:
            continue
        drawn, how = build_mixing_heat(frames, evidence.names, groups)
        own = float(np.diag(frames[-1][1]).mean())
        alone = all(np.allclose(m, np.diag(np.diag(m)), atol=NEGLIGIBLE) for _, m in frames)
        caption = caption_of(
            note.meaning,
            "Row: who learns; column: from whom.",
            _describe_cell(how, len(drawn.rows)),
            "Clients of one group share a model." if note.kind is QuantityKind.GROUPS else "",
            f"What a client gives to itself, {own:.3g} on average, is left out.",
            _describe_isolation(note) if alone else "",
            f"Seed {evidence.seeds[0]}.",
        )
        key, title = key_of(name, {method: records}), f"{title_of(note)}: {method}"
        figure = Figure(key, title, caption, "heat", "from", "client", heat=drawn)
        made.append(figure._replace(section="collaboration"))
    return made


def _describe_cell(how: str, rows: int) -> str:
    """What a cell is."""
    if how == "clients":
        return "A cell is a weight."
    of = "true groups" if how == "true groups" else f"of {rows} {how}"
    return f"A cell is the mean weight between two {of}."


def _describe_isolation(note: LoggedQuantity) -> str:
    if note.kind is QuantityKind.GROUPS:
        return "Here every client is alone in its group."
    return "Here nobody learns from anybody else."


def build_vector_figures(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs
) -> list[Figure]:
    """A row of numbers per client, a frame per round; a figure per method."""
    made = []
    for method, records in runs.items():
        found = read_server_frames(records[0].run.folder, name)
        frames = [f for f in found if f[1].ndim == 2 and len(f[1]) == records[0].clients]
        if not frames:
            continue
        drawn, how = build_vector_heat(
            frames, evidence.names, np.asarray(evidence.first.about["groups"])
        )
        width = frames[-1][1].shape[1]
        caption = caption_of(
            note.meaning,
            "A row is a client." if how == "clients" else f"A row is the mean of one of the {how}.",
            f"The first {MAX_GROUPS} of {width} numbers." if width > MAX_GROUPS else "",
            f"Seed {evidence.seeds[0]}.",
        )
        key, title = key_of(name, {method: records}), f"{title_of(note)}: {method}"
        x = f"component ({note.unit})" if note.unit else "component"
        figure = Figure(key, title, caption, "heat", x, "client", heat=drawn)
        made.append(figure._replace(section="inside"))
    return made


def build_grid_figures(
    evidence: Evidence, name: str, note: LoggedQuantity, runs: Runs
) -> list[Figure]:
    """The mean over clients of every cell; a figure per method."""
    made = []
    for method, records in runs.items():
        known = find_cells(records[0], name)
        rows, columns = (sorted({pair[k] for pair in known}, key=_sort_key) for k in (0, 1))

        def cell(row: str, column: str) -> float:
            written = known.get((row, column))
            if written is None:
                return float("nan")
            values = np.concatenate([record.last(written) for record in records])
            return scale_of(note) * float(nan_mean(values, 0))

        frame = (axis_of(note), [[cell(row, column) for column in columns] for row in rows])
        y, x = find_cell_axes(records[0], name)
        caption = caption_of(note.meaning, "A cell is the mean over the clients and seeds.")
        key, title = key_of(name, {method: records}), f"{title_of(note)}: {method}"
        figure = Figure(key, title, caption, "heat", x, y, heat=Heat(rows, columns, [frame]))
        made.append(figure._replace(section="inside"))
    return made


def _sort_key(text: str) -> tuple[float, str]:
    """Numbers by size, then words."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text
