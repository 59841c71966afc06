"""What a figure is, as plain data for the page and for draw.py, and what most figures share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.analysis.nan_math import nan_mean
from coterie.analysis.significance import seed_interval
from coterie.reports.evidence import Evidence

MAX_NAMED = 64  # clients up to which an axis shows their names
QUARTILES = "the middle half of the clients (quartiles)"


class Series(NamedTuple):
    """One method (or one kind of number) in a figure."""

    name: str
    x: list[Any]  # numbers, or text categories
    y: list[float]  # NaN is a gap
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    text: Sequence[str] = ()  # shown beside the pointer


class Heat(NamedTuple):
    """Matrices over the same rows and columns, one per round."""

    rows: list[str]
    columns: list[str]
    frames: list[tuple[str, list[list[float]]]]
    diverging: bool = False


class Figure(NamedTuple):
    """What is drawn, and how to read it."""

    key: str
    title: str
    note: str
    kind: str  # "lines", "dots", "bars", "density", "points", "forest" or "heat"
    x: str
    y: str
    series: tuple[Series, ...] = ()
    heat: Heat | None = None
    section: str = ""


def slugify(text: str) -> str:
    """Text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")


def describe_spread(seeds: int, one: str = "") -> str:
    """What `spread` draws, as "spans ..."; `one`: what is drawn with one seed."""
    if seeds == 1:
        return f"spans {one}"
    if seeds == 2:
        return "spans the two seeds"
    return f"spans the 95 % interval of the mean over {seeds} seeds"


def describe_shown_clients(evidence: Evidence) -> str:
    """Which clients a figure with one mark per client shows."""
    first, count = evidence.seeds[0], len(evidence.seeds)
    if count == 1:
        return f"Seed {first}."
    if evidence.fixed_partition:
        return f"Means over {count} seeds, which have the same clients."
    return (
        f"Seed {first} alone, as each seed partitions the data anew and client 1 of one is not "
        "client 1 of another."
    )


def axis_title(evidence: Evidence, part: str | None = None) -> str:
    """The title of an axis of the measure."""
    part = part or evidence.first.part
    unit = f" ({evidence.unit})" if evidence.unit else ""
    return f"{part} {evidence.judged.label}{unit}"


def measure_title(evidence: Evidence) -> str:
    """What is measured, as the beginning of a title."""
    return f"{evidence.first.part.capitalize()} {evidence.judged.label}"


def build_round_series(
    blocks: Sequence[tuple[np.ndarray, np.ndarray]], name: str, scale: float = 1
) -> Series:
    """The mean over clients by round, from (rounds [R], values [R, N]) of each seed.

    Bounds are what `spread` says over seeds, or the quartiles over clients with one seed.
    """
    rounds = blocks[0][0]
    for other, _ in blocks[1:]:
        rounds = np.intersect1d(rounds, other)
    cut = [scale * values[np.searchsorted(at, rounds)] for at, values in blocks]
    if len(cut) == 1:
        known = ~np.isnan(cut[0]).all(axis=1)
        rounds, values = rounds[known], cut[0][known]
        low, high = np.nanquantile(values, [0.25, 0.75], axis=1) if len(values) else ([], [])
        ends = list(map(float, low)), list(map(float, high))
        return Series(name, rounds.tolist(), nan_mean(values, 1).tolist(), *ends)
    found = [seed_interval(at) for at in np.stack([nan_mean(values, 1) for values in cut], 1)]
    middle, below, above = ([each[k] for each in found] for k in range(3))
    return Series(name, rounds.tolist(), middle, below, above)


def build_client_dots(
    evidence: Evidence, values: Mapping[str, np.ndarray], largest_first: bool = False
) -> tuple[tuple[Series, ...], str]:
    """(series, title of the x axis) with a dot per client, in order of the mean over the series.

    Where there is no room for names every series has its own order: in a common one a thousand
    clients are a cloud.
    """
    names, sign = evidence.names, -1 if largest_first else 1
    common = np.argsort(sign * nan_mean(np.stack(list(values.values())), 0), kind="stable")
    series = []
    for name, v in values.items():
        order = common if len(names) <= MAX_NAMED else np.argsort(sign * v, kind="stable")
        shown = [names[i] for i in order]
        x: list[Any] = shown if len(names) <= MAX_NAMED else list(range(1, len(names) + 1))
        series.append(Series(name, x, v[order].tolist(), text=_hover_texts(name, shown, v[order])))
    title = "client" if len(names) <= MAX_NAMED else "clients, each series in its own order"
    return tuple(series), title


def _hover_texts(name: str, clients: Sequence[str], values: np.ndarray) -> list[str]:
    pairs = zip(clients, values, strict=True)
    return [f"client {client}, {name}: {value:.4g}" for client, value in pairs]
