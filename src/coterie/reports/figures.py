"""The figures of a report as plain data: drawn once by matplotlib (draw.py) and once in the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import gaussian_kde, norm

from coterie.analysis.gains import improvement, qoi, qoi_global
from coterie.analysis.numbers import there
from coterie.analysis.significance import mean_interval
from coterie.reports.evidence import Evidence, Record, means

NAMED = 64  # clients up to which an axis shows their names
POINTS = 200  # of a density
BANDS = 4  # bands of quartiles in a figure at most
QUARTILES = "the middle half of the clients (quartiles)"
NARROW = 0.5  # points; a density of equal values is drawn this wide


class Series(NamedTuple):
    """One method (or one kind of number) in a figure."""

    name: str
    x: list[Any]  # numbers, or text categories
    y: list[float]  # NaN is a gap
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    text: Sequence[str] = ()  # shown beside the pointer


class Heat(NamedTuple):
    """Matrices over the same rows and columns, one a round."""

    rows: list[str]
    columns: list[str]
    frames: list[tuple[str, list[list[float]]]]
    diverging: bool = False


class Figure(NamedTuple):
    """What is drawn, and how to read it."""

    key: str
    title: str
    note: str
    kind: str  # "lines", "dots", "bars", "density", "points" or "heat"
    x: str
    y: str
    series: tuple[Series, ...] = ()
    heat: Heat | None = None
    section: str = ""


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) over seeds: the 95 % interval from three seeds on, the two values of two, no bounds for one."""
    found = there(values)
    if len(found) == 2:  # Student's interval of two values is eighteen times as wide as they are apart
        return float(found.mean()), float(found.min()), float(found.max())
    return mean_interval(found)[:3]


def spread_words(seeds: int, one: str = "") -> str:
    """What `spread` draws, as "spans ..."; `one`: what is drawn with one seed."""
    if seeds == 1:
        return f"spans {one}"
    return "spans the two seeds" if seeds == 2 else f"spans the 95 % interval of the mean over {seeds} seeds"


def whose(evidence: Evidence) -> str:
    """Which clients a figure with one mark a client shows."""
    if len(evidence.seeds) == 1:
        return f"Seed {evidence.seeds[0]}."
    if evidence.fixed_split:
        return f"Means over {len(evidence.seeds)} seeds, which share one split."
    return f"Seed {evidence.seeds[0]} alone, as each seed deals the data anew and client 1 of one is not client 1 of another."


def over_rounds(records: Sequence[Record], name: str, metric: str, part: str = "", view: str = "", scale: float = 1) -> Series:
    """The mean over clients round by round, with what `spread` says over seeds, or the quartiles over clients with one seed."""
    blocks = [record.block(metric, part, view) for record in records]
    rounds = blocks[0][0]
    for other, _ in blocks[1:]:
        rounds = np.intersect1d(rounds, other)
    cut = [scale * values[np.searchsorted(at, rounds)] for at, values in blocks]
    if len(cut) == 1:
        known = ~np.isnan(cut[0]).all(axis=1)
        rounds, values = rounds[known], cut[0][known]
        low, high = np.nanquantile(values, [0.25, 0.75], axis=1) if len(values) else ([], [])
        return Series(name, rounds.tolist(), means(values, 1).tolist(), list(map(float, low)), list(map(float, high)))
    ends = [spread(at) for at in np.stack([means(values, 1) for values in cut], 1)]
    middle, low, high = ([e[k] for e in ends] for k in range(3))
    return Series(name, rounds.tolist(), middle, low, high)


def _clipped(series: Series, evidence: Evidence) -> Series:
    """An accuracy has no interval beyond 0 and 100 %."""
    top = evidence.scale if evidence.classed else np.inf
    low, high = (np.clip(np.asarray(ends, dtype=float), 0, top).tolist() for ends in (series.low, series.high))
    return series._replace(low=low, high=high)


def axis(evidence: Evidence, part: str | None = None) -> str:
    """The title of an axis of the measure."""
    part = part or evidence.first.part
    return f"{part} {evidence.first.measure}" + (f" ({evidence.unit})" if evidence.unit else "")


# Accuracy


def curves(evidence: Evidence, part: str) -> Figure | None:
    """The measure by round of every method."""
    made = {
        name: over_rounds(records, name, evidence.first.measure, part, "personal", evidence.scale)
        for name, records in evidence.records.items()
    }
    series = tuple(_clipped(s, evidence) for s in made.values() if len(there(s.y)))
    if not series:
        return None
    band = f"; the band {spread_words(len(evidence.seeds), QUARTILES)}"
    if len(evidence.seeds) == 1 and len(series) > BANDS:  # so many bands over clients hide each other
        series, band = tuple(s._replace(low=(), high=()) for s in series), ""
    role = (
        " No method has seen these rows."
        if part == "test"
        else " Rounds and options are chosen on these rows, never on test rows."
    )
    note = f"Mean over the clients' own models{band}.{role}{stages(evidence)}"
    title = f"{part.capitalize()} {evidence.first.measure} by round"
    key = "curves" if part == evidence.first.part else f"curves-{part}"
    return Figure(key, title, note, "lines", "round", axis(evidence, part), series, section="accuracy")


def stages(evidence: Evidence) -> str:
    """What the rounds of methods with several stages are, as a sentence."""
    found = {name: records[0].stages for name, records in evidence.records.items()}
    said = [f"{name} has {', '.join(f'{s} from round {r}' for s, r in each)}" for name, each in found.items() if len(each) > 1]
    return f" Stages: {'; '.join(said)}." if said else ""


def client_dots(
    evidence: Evidence, values: Mapping[str, np.ndarray], largest_first: bool = False
) -> tuple[tuple[Series, ...], str]:
    """(series, title of the x axis) with a dot a client, in order of the mean over the series, by name.

    Where there is no room for names every series has its own order: in a common one a thousand clients are a cloud.
    """
    names, sign = evidence.names, -1 if largest_first else 1
    common = np.argsort(sign * means(np.stack(list(values.values())), 0), kind="stable")
    series = []
    for name, v in values.items():
        order = common if len(names) <= NAMED else np.argsort(sign * v, kind="stable")
        shown = [names[i] for i in order]
        x: list[Any] = shown if len(names) <= NAMED else list(range(1, len(names) + 1))
        series.append(Series(name, x, v[order].tolist(), text=_hover(name, shown, v[order])))
    return tuple(series), "client" if len(names) <= NAMED else "clients, each series in its own order"


def _hover(name: str, clients: Sequence[str], values: np.ndarray) -> list[str]:
    return [f"client {client}, {name}: {value:.4g}" for client, value in zip(clients, values, strict=True)]


def clients(evidence: Evidence) -> Figure:
    """Every client under every method."""
    values = {name: evidence.scale * evidence.clientwise(name) for name in evidence.methods}
    series, title = client_dots(evidence, values)
    order = (
        "from the lowest mean to the highest" if len(evidence.names) <= NAMED else "of each method from the lowest to the highest"
    )
    note = f"A dot is a client's own model at the last round; clients {order}. {whose(evidence)}"
    return Figure(
        "clients", f"{words(evidence)} of every client", note, "dots", title, axis(evidence), series, section="accuracy"
    )


def words(evidence: Evidence) -> str:
    """What is measured, as the beginning of a title."""
    return f"{evidence.first.part.capitalize()} {evidence.first.measure}"


def gains(evidence: Evidence) -> tuple[dict[str, np.ndarray], str]:
    """({method: gain [seeds, N] in points}, over what); empty where there is nothing to measure a gain over."""
    if not evidence.classed or "fedavg" not in evidence.records:
        return {}, ""
    base = evidence.measured("fedavg")
    others = [name for name in evidence.methods if name not in ("fedavg", "local")]
    if "local" in evidence.records:
        alone = evidence.measured("local")
        return {name: qoi(evidence.measured(name), base, alone) for name in others}, "the better of FedAvg and Local"
    return {name: qoi_global(evidence.measured(name), base) for name in others}, "FedAvg"


def density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A density by Gaussian kernels; of few or equal values with kernels of a fixed width."""
    found = there(values)
    if len(found) > 2 and found.std() > NARROW / 2:
        return np.asarray(gaussian_kde(found)(grid))
    return np.asarray(norm.pdf(grid[:, None], found[None], NARROW).mean(axis=1))


def gain_density(evidence: Evidence) -> Figure | None:
    """Who gains and who loses."""
    found, over = gains(evidence)
    found = {name: q for name, q in found.items() if len(there(q))}
    if not found:
        return None
    everything = np.concatenate([there(q) for q in found.values()])
    edge = max(2.0, 0.15 * float(np.ptp(everything)))
    grid = np.linspace(everything.min() - edge, everything.max() + edge, POINTS)
    series = []
    for name, q in found.items():
        figures = improvement(q)
        text = f"{name}: {figures.pui:.0f} % gain, {figures.pud:.0f} % lose"
        series.append(Series(name, grid.tolist(), density(q, grid).tolist(), text=[text] * POINTS))
    seeds = "" if len(evidence.seeds) == 1 else " All seeds together."
    note = f"How the clients' gains over {over} are spread: right of 0 are clients the method serves better.{seeds}"
    if over == "FedAvg":
        note += " Local is not among the runs, so a client may still be better off alone."
    title = "Gain of the clients" if over != "FedAvg" else "Gain of the clients over FedAvg"
    x = f"gain over {over} (percentage points)"
    return Figure("qoi", title, note, "density", x, "share of clients per point", tuple(series), section="accuracy")


def global_and_personal(evidence: Evidence) -> Figure | None:
    """Each client's own model beside the global one, where a method has both."""
    series = []
    for name in evidence.methods:
        common, own = (evidence.scale * evidence.clientwise(name, view) for view in ("global", "personal"))
        if not np.isnan(common).all():
            pairs = zip(evidence.names, common, own, strict=True)
            text = [f"client {client}, {name}: global {a:.4g}, own {b:.4g}" for client, a, b in pairs]
            series.append(Series(name, common.tolist(), own.tolist(), text=text))
    if not series:
        return None
    side = "above" if evidence.classed else "below"
    note = (
        f"A dot is a client; {side} the diagonal its own model serves it better than the method's global model. {whose(evidence)}"
    )
    x, y = (f"{axis(evidence)} of {what}" for what in ("the global model", "the client's own model"))
    return Figure("global", "Own model against global model", note, "points", x, y, tuple(series), section="accuracy")


def accuracy_figures(evidence: Evidence) -> list[Figure]:
    """All figures on how well clients are served."""
    part = evidence.first.part
    found = [curves(evidence, part), clients(evidence), gain_density(evidence)]
    found += [curves(evidence, "validation")] if part != "validation" else []
    return [figure for figure in [*found, global_and_personal(evidence)] if figure]
