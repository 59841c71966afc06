"""Figures on how well clients are served."""

from __future__ import annotations

import numpy as np

from coterie.analysis.nan_math import drop_nan
from coterie.reports.evidence import Evidence
from coterie.reports.figures import (
    MAX_NAMED,
    QUARTILES,
    Figure,
    Series,
    axis_title,
    build_client_dots,
    build_round_series,
    describe_shown_clients,
    describe_spread,
    measure_title,
)
from coterie.reports.gain_figures import build_gain_density
from coterie.reports.histograms import accuracy_histogram

MAX_BANDS = 4  # bands of quartiles in a figure at most


def _clip(series: Series, evidence: Evidence) -> Series:
    """An accuracy has no interval beyond 0 and 100 %."""
    least, most = (evidence.scale * end for end in evidence.judged.bounds)
    low, high = (
        np.clip(np.asarray(ends, dtype=float), least, most).tolist()
        for ends in (series.low, series.high)
    )
    return series._replace(low=low, high=high)


def build_curves(evidence: Evidence, part: str) -> Figure | None:
    """The measure by round of every method."""
    made = {
        name: build_round_series(
            [r.block(evidence.first.measure, part, "personal") for r in records],
            name,
            evidence.scale,
        )
        for name, records in evidence.records.items()
    }
    series = tuple(_clip(s, evidence) for s in made.values() if len(drop_nan(s.y)))
    if not series:
        return None
    band = f"; the band {describe_spread(len(evidence.seeds), QUARTILES)}"
    if (
        len(evidence.seeds) == 1 and len(series) > MAX_BANDS
    ):  # so many bands over clients hide each other
        series, band = tuple(s._replace(low=(), high=()) for s in series), ""
    role = (
        " No method has seen these rows."
        if part == "test"
        else " Rounds and options are chosen on these rows, never on test rows."
    )
    note = f"Mean over the clients' own models{band}.{role}{describe_stages(evidence)}"
    title = f"{part.capitalize()} {evidence.judged.label} by round"
    key = "curves" if part == evidence.first.part else f"curves-{part}"
    return Figure(
        key, title, note, "lines", "round", axis_title(evidence, part), series, section="accuracy"
    )


def loss_curves(evidence: Evidence, view: str) -> Figure | None:
    """The training loss by round, of own models or of the methods' global ones."""
    made = {
        name: build_round_series([r.block("loss", "train", view) for r in records], name)
        for name, records in evidence.records.items()
    }
    series = tuple(s._replace(low=(), high=()) for s in made.values() if len(drop_nan(s.y)))
    if not series:
        return None
    whom = "the clients' own models" if view == "personal" else "the method's global model"
    return Figure(
        key="loss" if view == "personal" else f"loss-{view}",
        title=f"Training loss by round: {view} models",
        note=f"Mean over clients of the loss of {whom} on a client's training rows, over seeds."
        f"{describe_stages(evidence)}",
        kind="lines",
        x="round",
        y="train loss",
        series=series,
        section="accuracy",
    )


def describe_stages(evidence: Evidence) -> str:
    """What the rounds of methods with several stages are, as a sentence."""
    found = {name: records[0].stages for name, records in evidence.records.items()}
    said = [
        f"{name} has {', '.join(f'{s} from round {r}' for s, r in each)}"
        for name, each in found.items()
        if len(each) > 1
    ]
    return f" Stages: {'; '.join(said)}." if said else ""


def build_clients_figure(evidence: Evidence) -> Figure:
    """Every client under every method."""
    values = {name: evidence.scale * evidence.clientwise(name) for name in evidence.methods}
    series, title = build_client_dots(evidence, values)
    order = (
        "from the lowest mean to the highest"
        if len(evidence.names) <= MAX_NAMED
        else "of each method from the lowest to the highest"
    )
    note = (
        f"A dot is a client's own model at the last round; clients {order}. "
        f"{describe_shown_clients(evidence)}"
    )
    return Figure(
        "clients",
        f"{measure_title(evidence)} of every client",
        note,
        "dots",
        title,
        axis_title(evidence),
        series,
        section="accuracy",
    )


def build_global_figure(evidence: Evidence) -> Figure | None:
    """Each client's own model beside the global one, where a method has both."""
    series = []
    for name in evidence.methods:
        common, own = (
            evidence.scale * evidence.clientwise(name, view) for view in ("global", "personal")
        )
        if not np.isnan(common).all():
            pairs = zip(evidence.names, common, own, strict=True)
            text = [
                f"client {client}, {name}: global {a:.4g}, own {b:.4g}" for client, a, b in pairs
            ]
            series.append(Series(name, common.tolist(), own.tolist(), text=text))
    if not series:
        return None
    side = "above" if evidence.judged.higher else "below"
    note = (
        f"A dot is a client; {side} the diagonal its own model serves it better than the "
        f"method's global model. {describe_shown_clients(evidence)}"
    )
    x, y = (
        f"{axis_title(evidence)} of {what}"
        for what in ("the global model", "the client's own model")
    )
    return Figure(
        "global",
        "Own model against global model",
        note,
        "points",
        x,
        y,
        tuple(series),
        section="accuracy",
    )


def build_accuracy_figures(evidence: Evidence) -> list[Figure]:
    """All figures on how well clients are served."""
    part = evidence.first.part
    found = [
        build_curves(evidence, part),
        build_clients_figure(evidence),
        accuracy_histogram(evidence),
    ]
    found += [build_gain_density(evidence)]
    found += [build_curves(evidence, "validation")] if part != "validation" else []
    found += [loss_curves(evidence, view) for view in ("personal", "global")]
    return [figure for figure in [*found, build_global_figure(evidence)] if figure]
