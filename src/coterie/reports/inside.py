"""Figures on cost, on what happened inside the methods (who learns from whom, PersFL, Self-FL, notes), and on the data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.analysis.numbers import there
from coterie.reports.evidence import Evidence, Record, means
from coterie.reports.figures import (
    NAMED,
    QUARTILES,
    Figure,
    Heat,
    Series,
    axis,
    client_dots,
    over_rounds,
    spread,
    spread_words,
    whose,
    words,
)
from coterie.reports.matrices import CLUSTER, GROUPS, Mixing, heat
from coterie.results.costs import SYSTEMS, Axis, accuracy_against

GRID = re.compile(r"grid_accuracy\[lambda=(.+),T=(.+)\]")
SELF_FL = ("sigma2", "steps_taken")  # notes that only Self-FL writes
HANDLED = re.compile(
    r"teacher_round|lambda|T|grid_accuracy.*|sigma2|steps_taken|raw_steps|r|h|capped|guard|cluster|.*_(before|after)"
)
MEANINGS = {"alpha": "alpha, the share of a client's own model in its mixture", "taken": "share taken from the global model"}
ALONE = 1e-4  # weights on others below count as none
UNITS = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "bytes": 1.0}
LITTLE = 0.01  # of the largest traffic: a method below is drawn as a level


# Cost


def _against(evidence: Evidence, name: str, by: Axis, scale: float, system: str = "slow uplink") -> Series:
    """Mean accuracy against what was spent, both averaged over seeds round by round."""
    found = [accuracy_against(r.slim, by, evidence.first.part, system=system) for r in evidence.records[name]]
    length = min(len(x) for x, _ in found)  # a seed that was stopped is shorter
    x = np.mean([x[:length] for x, _ in found], axis=0) * scale
    ends = [spread(at) for at in evidence.scale * np.stack([y[:length] for _, y in found], 1)]
    return Series(name, x.tolist(), [e[0] for e in ends])


def cost_figures(evidence: Evidence) -> list[Figure]:
    """Accuracy against bytes, and against time in three simulated systems."""
    y, seeds = axis(evidence), "" if len(evidence.seeds) == 1 else f" Means over {len(evidence.seeds)} seeds."
    spent = [_against(evidence, name, "bytes", 1.0) for name in evidence.methods]
    most = max((x for s in spent for x in s.x), default=0.0)
    unit, size = next((u, b) for u, b in UNITS.items() if most >= b or b == 1)
    spent, most = [s._replace(x=[x / size for x in s.x]) for s in spent], most / size
    silent = [s.name for s in spent if max(s.x) <= LITTLE * most]
    level = [Series(s.name, [0.0, most], [s.y[-1]] * 2) if s.name in silent and most else s for s in spent]
    better = "up" if evidence.classed else "down"
    note = f"Bytes that travelled up to a round, to and from every client by itself; {better} and to the left is better.{seeds}"
    if silent and most:
        note += f" {', '.join(silent)}: next to nothing is sent; the level line is the last round."
    made = [
        Figure(
            "bytes", f"{y.partition(' (')[0].capitalize()} against traffic", note, "lines", f"traffic ({unit})", y, tuple(level)
        )
    ]
    for system, (rho, _, mu) in SYSTEMS.items():
        speed = (
            "all clients compute equally fast" if np.isinf(mu) else "clients compute at different speeds and the slowest decides"
        )
        upload = f"{rho:g} times as long as a download" if rho != 1 else "as long as a download"
        note = f"Simulated: an upload of a model takes {upload}, uploads come one after another, and {speed}.{seeds}"
        series = tuple(_against(evidence, name, "time", 1, system) for name in evidence.methods)
        title = f"{words(evidence)} against time: {system}"
        key = f"time-{system.replace(' ', '-')}"
        made.append(Figure(key, title, note, "lines", "simulated time (downloads of one model)", y, series))
    return [figure._replace(section="cost") for figure in made]


# Who learns from whom


def collaboration(evidence: Evidence, found: Mapping[str, Mixing]) -> list[Figure]:
    """A heat map for every method whose server notes who learns from whom, with a frame a round."""
    made = []
    groups = np.asarray(evidence.first.about["groups"])
    for name, mix in found.items():
        drawn, how = heat(mix, evidence.names, groups)
        own = float(np.diag(mix.frames[-1]).mean())
        note = "Row: who learns; column: from whom. "
        note += {"clients": "A cell is a weight", "true groups": "A cell is the mean weight between two true groups"}.get(
            how, f"A cell is the mean weight between two of {len(drawn.rows)} {how}"
        )
        note += f" ({mix.name} in the paper)." if mix.name != CLUSTER else ": clients of one cluster share a model."
        note += f" What a client gives to itself, {own:.3g} on average, is left out."
        if all(np.allclose(m, np.diag(np.diag(m)), atol=ALONE) for m in mix.frames):
            note += " Here nobody learns from anybody else."
        note += f" Seed {evidence.seeds[0]}."
        title = f"Who learns from whom: {name}"
        made.append(Figure(f"mixing-{_slug(name)}", title, note, "heat", "from", "client", heat=drawn, section="collaboration"))
    return made


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")


def notes(evidence: Evidence) -> list[Figure]:
    """Distances before and after an exchange, and any other number that clients wrote down, round by round."""
    made = []
    band = spread_words(len(evidence.seeds), QUARTILES)
    for name, records in evidence.records.items():
        known = records[0].notes
        for stem in [note.removesuffix("_before") for note in known if note.endswith("_before")]:
            pair = {when: over_rounds(records, when, f"{stem}_{when}") for when in ("before", "after")}
            note = (
                f"{stem.upper()} between a client's predictions on public data and what it is taught, before and after it "
                f"learns; the band {band}."
            )
            title = f"Distance to the teacher by round: {name}"
            key = f"{stem}-{_slug(name)}"
            made.append(Figure(key, title, note, "lines", "round", stem.upper(), tuple(pair.values()), section="collaboration"))
        for note in known:
            series = over_rounds(records, name, note)
            if HANDLED.fullmatch(note) or not len(there(series.y)):
                continue
            said = f"Mean over the clients that took part in a round; the band {band}."
            title, key = f"{note} by round: {name}", f"{_slug(note)}-{_slug(name)}"
            made.append(Figure(key, title, said, "lines", "round", MEANINGS.get(note, note), (series,), section="collaboration"))
    return made


# PersFL


def persfl(evidence: Evidence) -> list[Figure]:
    """Which round a client's teacher is of, and how lambda and the temperature work together."""
    made = []
    taught = {n: records for n, records in evidence.records.items() if "teacher_round" in records[0].notes}
    if taught:
        values = {name: _clientwise(evidence, records, "teacher_round") for name, records in taught.items()}
        series, title = client_dots(evidence, values)
        note = f"The round whose global model did best on a client's validation rows and became its teacher. {whose(evidence)}"
        made.append(
            Figure("persfl-teacher", "Teacher's round", note, "dots", title, "round of the teacher", series, section="persfl")
        )
    for name, records in taught.items():
        drawn = _grid(records)
        if drawn:
            note = (
                "Mean validation accuracy over clients of the student that each pair trains. lambda is the weight of the "
                "teacher, T its temperature; without a teacher (lambda 0) T does not matter."
            )
            key, title = f"persfl-grid-{_slug(name)}", f"lambda and temperature: {name}"
            made.append(Figure(key, title, note, "heat", "temperature T", "lambda", heat=drawn, section="persfl"))
    return made


def _clientwise(evidence: Evidence, records: Sequence[Record], note: str) -> np.ndarray:
    block = np.stack([record.last(note) for record in records])
    return means(block, 0) if evidence.fixed_split else block[0]


def _grid(records: Sequence[Record]) -> Heat | None:
    """Mean accuracy in % of every (lambda, T) of the grid."""
    pairs = {(m[1], m[2]): m[0] for note in records[0].notes if (m := GRID.fullmatch(note))}
    if not pairs:
        return None
    lams, temps = (sorted({pair[k] for pair in pairs}, key=float) for k in (0, 1))

    def cell(lam: str, T: str) -> float:
        note = pairs.get((lam, T))
        return 100 * float(means(np.concatenate([r.last(note) for r in records]), 0)) if note else float("nan")

    return Heat(lams, temps, [("validation accuracy (%)", [[cell(lam, T) for T in temps] for lam in lams])])


# Self-FL


def selffl(evidence: Evidence) -> list[Figure]:
    """Steps and uncertainties of Self-FL over the rounds."""
    found = {n: records for n, records in evidence.records.items() if set(SELF_FL) <= set(records[0].notes)}
    if not found:
        return []
    band = spread_words(len(evidence.seeds), QUARTILES)
    steps = tuple(over_rounds(records, name, "steps_taken") for name, records in found.items())
    capped = {n: means(np.concatenate([r.block("capped")[1].ravel() for r in records]), 0) for n, records in found.items()}
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in capped.items() if share == share)
    note = f"Mean over the clients that took part; the band {band}. " + (
        f"Rounds at the largest allowed number: {said}." if said else ""
    )
    made = [Figure("selffl-steps", "Local steps by round", note.strip(), "lines", "round", "local steps of a client", steps)]
    variances = tuple(_logs(over_rounds(records, name, "sigma2")) for name, records in found.items())
    if any(len(there(s.y)) for s in variances):
        note = f"How uncertain a client is of its own model: log10 of its variance sigma². Mean over clients; the band {band}."
        made.append(
            Figure("selffl-variance", "Uncertainty of clients by round", note, "lines", "round", "log10 of sigma²", variances)
        )
    return [figure._replace(section="selffl") for figure in made]


def _logs(series: Series) -> Series:
    def log(values: Sequence[float]) -> list[float]:
        numbers = np.asarray(values, dtype=float)
        return np.log10(np.where(numbers > 0, numbers, np.nan)).tolist()

    return series._replace(y=log(series.y), low=log(series.low), high=log(series.high))


# Data


def data_figures(evidence: Evidence) -> list[Figure]:
    """Which client holds how many rows, and of which classes."""
    rows = {part: np.asarray(rows, dtype=float) for part, rows in evidence.first.about["rows"].items()}
    rows = {part: held for part, held in rows.items() if held.any()}
    series, title = client_dots(evidence, rows, largest_first=True)
    seed = "" if evidence.fixed_split else f" Seed {evidence.seeds[0]}."
    note = f"Rows that each client holds, the largest first.{seed}"
    made = [Figure("sizes", "Rows of the clients", note, "dots", title, "rows", series)]
    counted = evidence.counts()
    if counted:
        labels, counts = counted
        names, cells, note = evidence.names, counts.astype(float), "Rows of all parts together."
        if len(names) > NAMED:
            order = np.lexsort((np.arange(len(names)), counts.argmax(1)))
            parts = np.array_split(order, GROUPS)
            names = [f"{len(part)} clients from {names[part[0]]}" for part in parts]
            cells = np.stack([counts[part].mean(0) for part in parts])
            note = f"Mean rows a client; clients by their most frequent class, neighbours put together in {GROUPS} groups."
        drawn = Heat(names, [str(k) for k in labels], [("rows", cells.tolist())])
        made.append(Figure("split", "Classes of the clients", note + seed, "heat", "class", "client", heat=drawn))
    return [figure._replace(section="data") for figure in made]
