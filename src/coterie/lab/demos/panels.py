"""The panels of the demos' pictures, as figures of a report's kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from coterie.analysis.nan_math import nan_mean
from coterie.reports.evidence import Evidence
from coterie.reports.fairness_figures import build_worst_served
from coterie.reports.figures import Figure, Heat, Series, build_client_dots
from coterie.reports.logged_values import latest_values, read_server_frames, values_by_round
from coterie.results.costs import accuracy_against

ACCURACY = "test accuracy (%)"


def persfl_panels(evidence: Evidence) -> list[Figure]:
    """Teachers, gains, fairness."""
    return [
        _final_dots(evidence, "persfl", "teacher_round", "Round of each client's teacher", "round"),
        _gain_dots(evidence, ("persfl", "finetune", "fedavg")),
        build_worst_served(evidence)._replace(title="Worst-served clients"),
    ]


def pfml_panels(evidence: Evidence) -> list[Figure]:
    """Both models by round, alone and together; who gains."""
    shown = {
        "deep, personal, with mutual learning": ("pfml", "personal"),
        "deep, personal, without it": ("pfml@alone", "personal"),
        "linear, shared, with mutual learning": ("pfml", "global"),
        "linear, each client alone": ("local", "personal"),
        "linear, FedAvg": ("fedavg", "personal"),
    }
    return [_curves(evidence, shown), _gain_dots(evidence, ("pfml", "pfml@alone"))]


def ktpfl_panels(evidence: Evidence) -> list[Figure]:
    """c at the first and at the last round; accuracy by network."""
    frames = read_server_frames(evidence.records["ktpfl"][0].run.folder, "c")
    ends = (frames[0], frames[-1])
    maps = [
        _matrix(evidence, f"c after round {number}", values, [z for _, z in ends])
        for number, values in ends
    ]
    return [*maps, _network_bars(evidence)]


def selffl_panels(evidence: Evidence) -> list[Figure]:
    """sigma within and between clients, steps, gains."""
    record = evidence.records["selffl"][0]
    series = []
    for label, name in (("within a client", "sigma2"), ("between clients", "sigma0")):
        rounds, values = values_by_round(record, name)
        known = (values > 0).any(axis=1)
        cut = np.where(values[known] > 0, values[known], np.nan)
        y = np.log10(nan_mean(cut, 1)).tolist()
        series.append(Series(label, rounds[known].tolist(), y))
    sigma = _lines("sigma", "Uncertainty", "round", "log10 of sigma^2", tuple(series))
    title = "Local steps that (8) asks for, last round"
    steps = _final_dots(evidence, "selffl", "raw_steps", title, "log10 of steps, before the limit")
    steps = steps._replace(series=tuple(s._replace(y=np.log10(s.y).tolist()) for s in steps.series))
    return [sigma, steps, _gain_dots(evidence, ("selffl", "fedavg@40", "fedavg"))]


def ucfl_panels(evidence: Evidence) -> list[Figure]:
    """W, the silhouette over k, accuracy against streams and against time."""
    weights = read_server_frames(evidence.records["ucfl"][0].run.folder, "W")[-1][1]
    return [
        _matrix(evidence, "W: row learns from column", weights),
        _silhouettes(weights),
        _stream_line(evidence),
        _time_lines(evidence),
    ]


def _lines(key: str, title: str, x: str, y: str, series: tuple[Series, ...]) -> Figure:
    return Figure(key, title, "", "lines", x, y, series)


def _curves(evidence: Evidence, shown: Mapping[str, tuple[str, str]]) -> Figure:
    series = []
    for label, (method, view) in shown.items():
        run = evidence.records[method][0].run
        rounds, values = evidence.records[method][0].block(run.measure, run.part, view)
        series.append(Series(label, rounds.tolist(), (100 * nan_mean(values, 1)).tolist()))
    return _lines("curves", "Test accuracy by round", "round", ACCURACY, tuple(series))


def _gain_dots(evidence: Evidence, methods: Sequence[str]) -> Figure:
    """Points that each client gains over training alone."""
    alone = nan_mean(evidence.client_values("local"), 0)
    gains = {m: 100 * (nan_mean(evidence.client_values(m), 0) - alone) for m in methods}
    series, x = build_client_dots(evidence, gains)
    return Figure("gains", "Gain over Local", "", "dots", x, "points", series)


def _final_dots(evidence: Evidence, method: str, name: str, title: str, unit: str) -> Figure:
    values = {method: latest_values(evidence.records[method][0], name)}
    series, x = build_client_dots(evidence, values)
    return Figure(name, title, "", "dots", x, unit, series)


def _matrix(
    evidence: Evidence, title: str, values: np.ndarray, beside: Sequence[np.ndarray] = ()
) -> Figure:
    """Clients of one true group side by side; in the colours of the matrices beside it."""
    order = np.argsort(np.asarray(evidence.first.about["groups"]), kind="stable")
    names = [evidence.names[k] for k in order]
    frames = [(title, z[np.ix_(order, order)].tolist()) for z in (*beside, values)]
    heat = Heat(names, names, frames)  # the last one is drawn, all decide the colours
    return Figure("matrix", title, "", "heat", "from client", "client", heat=heat)


def _network_bars(evidence: Evidence) -> Figure:
    """Mean accuracy of the clients of each network."""
    about = evidence.first.about
    which, nets = np.asarray(about["architecture"]), about["models"]
    labels = [f"{net['name']}, {net['parameters']:,}" for net in nets]
    series = []
    for method in evidence.methods:
        values = 100 * nan_mean(evidence.client_values(method), 0)
        means = [float(np.nanmean(values[which == k])) for k in range(len(nets))]
        series.append(Series(method, labels, means))
    x = "network, parameters"
    return Figure("networks", "Accuracy by network", "", "bars", x, ACCURACY, tuple(series))


def _silhouettes(weights: np.ndarray) -> Figure:
    """How well the rows of W fall into k groups; the largest is the number of streams to send."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    points = weights.round(12)
    most = min(len(points) - 1, len(np.unique(points, axis=0)), 10)
    found = {
        k: float(silhouette_score(points, KMeans(k, n_init=10, random_state=0).fit_predict(points)))
        for k in range(2, most + 1)
    }
    series = Series("silhouette", list(found), list(found.values()))
    return _lines("silhouette", "Silhouette of W's rows", "streams k", "score", (series,))


def _stream_line(evidence: Evidence) -> Figure:
    """Accuracy against the number of models that are broadcast; FedAvg has one."""
    streams = {1: "fedavg"} | {
        int(name.removeprefix("ucfl@")): name
        for name in evidence.methods
        if name.startswith("ucfl@")
    }
    streams[len(evidence.names)] = "ucfl"
    y = [100 * float(np.nanmean(evidence.client_values(name))) for name in streams.values()]
    local = 100 * float(np.nanmean(evidence.client_values("local")))
    ends = [1, len(evidence.names)]
    series = (Series("ucfl", list(streams), y), Series("local", ends, [local, local]))
    return _lines("streams", "Accuracy against streams", "models sent", ACCURACY, series)


def _time_lines(evidence: Evidence) -> Figure:
    """Accuracy against simulated time where uploads are slow."""
    series = []
    for name in evidence.methods:
        x, y = accuracy_against(evidence.records[name][0].slim, "time", "test")
        series.append(Series(name, x.tolist(), (100 * y).tolist()))
    title = "Accuracy against time, slow uplink"
    return _lines("time", title, "downloads of one model", ACCURACY, tuple(series))
