"""The pictures of the arena's page, by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from coterie.analysis.nan_math import nan_max
from coterie.analysis.ranks import Ranking
from coterie.lab.arena.budget_section import PICTURE as BUDGETS
from coterie.lab.arena.newcomer_section import PICTURE, NewcomerSummary
from coterie.lab.arena.results import Block
from coterie.lab.arena.summary import ArenaSummary
from coterie.reports.draw import COLOURS

BASELINES = ("local", "fedavg")
LINE = 0.2  # inches per method
DPI = 100


def draw_all(
    found: ArenaSummary,
    whole: Ranking,
    points: Block,
    came: NewcomerSummary | None,
    budgets: Mapping[int, Mapping[str, float]],
    folder: Path,
) -> list[Path]:
    """Every picture, as a small PNG; those of newcomers and of budgets where there were any."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "arena-ranks": draw_ranks(whole),
        "arena-behind": draw_behind(found, points),
        "arena-bytes": draw_scatter(
            found, found.bytes, "bytes sent, times FedAvg's", found.behind, log=True
        ),
        "arena-worst": draw_scatter(
            found, found.behind, "mean behind the best, points", found.worst, log=False
        ),
        "arena-drop": draw_dropout(found),
        **({PICTURE: draw_newcomers(came)} if came else {}),
        **({BUDGETS: draw_budgets(budgets)} if budgets else {}),
    }
    paths = []
    for name, canvas in pictures.items():
        paths.append(folder / f"{name}.png")
        canvas.savefig(paths[-1], dpi=DPI, metadata={"Software": None})
    return paths


def _colour_of(method: str) -> str:
    return COLOURS[1] if method in BASELINES else COLOURS[0]


def _style_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e4e8ee", linewidth=0.8)
    axes.set_axisbelow(True)


def _label_methods(axes: Axes, methods: tuple[str, ...]) -> None:
    """The methods from top to bottom; the two that everything is measured against stand out."""
    axes.set_yticks(range(len(methods)), methods, fontsize=8)
    for label in axes.get_yticklabels():
        label.set_color(_colour_of(label.get_text()))
    axes.set_ylim(len(methods) - 0.4, -0.6)


def draw_ranks(whole: Ranking) -> Canvas:
    """A critical-difference diagram, turned on its side: a bar joins what is not told apart."""
    methods = whole.methods
    canvas = Canvas(figsize=(7.2, 1.1 + LINE * len(methods)), layout="constrained")
    axes = canvas.subplots()
    axes.scatter(
        whole.rank, range(len(methods)), c=[_colour_of(m) for m in methods], s=28, zorder=3
    )
    right = float(whole.rank.max(initial=0)) + 1
    for k, (first, last) in enumerate(whole.cliques):
        axes.plot([right + k * 0.7] * 2, [first, last], color="#555555", linewidth=3)
    if np.isfinite(whole.distance):
        start = float(whole.rank.min())
        end = start + whole.distance
        axes.plot([start, end], [-0.9, -0.9], color="#b2182b", linewidth=2, clip_on=False)
        axes.text(
            end, -0.9, f"  {whole.distance:.1f} ranks", color="#b2182b", va="center", fontsize=8
        )
    _label_methods(axes, methods)
    axes.set_ylim(len(methods) - 0.4, -1.4)
    _style_axes(axes)
    axes.set_xlabel(f"mean rank over {whole.n} federations, 1 is best")
    return canvas


def draw_behind(found: ArenaSummary, points: Block) -> Canvas:
    """Points behind the best method, federation by federation."""
    methods = found.methods
    values = points.values[:, [points.methods.index(m) for m in methods]]
    gaps = nan_max(values, 1) - values
    canvas = Canvas(figsize=(7.2, 1.6 + LINE * len(methods)), layout="constrained")
    axes = canvas.subplots()
    image = axes.imshow(gaps.T, aspect="auto", cmap="viridis_r", vmin=0, vmax=20)
    axes.set_xticks(range(len(points.federations)), points.federations, rotation=60, ha="right")
    axes.tick_params(axis="x", labelsize=8)
    _label_methods(axes, methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    canvas.colorbar(image, ax=axes, label="points behind the best, 20 and more alike", shrink=0.6)
    return canvas


def draw_scatter(
    found: ArenaSummary, x: np.ndarray, label: str, y: np.ndarray, log: bool
) -> Canvas:
    """One number of every method against another, each dot with its name."""
    canvas = Canvas(figsize=(7.2, 5.4), layout="constrained")
    axes = canvas.subplots()
    there = np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not log))
    axes.scatter(
        x[there], y[there], c=[_colour_of(found.methods[k]) for k in np.flatnonzero(there)]
    )
    for k in np.flatnonzero(there):
        where = (float(x[k]), float(y[k]))
        axes.annotate(found.methods[k], where, (4, 3), textcoords="offset points", fontsize=7)
    if log and there.any():
        axes.set_xscale("log")
    axes.invert_yaxis()
    _style_axes(axes)
    axes.set_xlabel(label)
    axes.set_ylabel(
        "mean behind the best, points" if y is found.behind else "worst tenth behind the best"
    )
    return canvas


def draw_dropout(found: ArenaSummary) -> Canvas:
    """Points that each method loses where clients do not answer."""
    known = np.flatnonzero(np.isfinite(found.dropped))
    order = known[np.argsort(found.dropped[known], kind="stable")]
    methods = tuple(found.methods[k] for k in order)
    canvas = Canvas(figsize=(7.2, 1.1 + LINE * max(2, len(methods))), layout="constrained")
    axes = canvas.subplots()
    colours = [_colour_of(m) for m in methods]
    axes.barh(range(len(methods)), found.dropped[order], color=colours, height=0.6)
    axes.axvline(0, color="#555555", linewidth=0.8)
    _label_methods(axes, methods)
    _style_axes(axes)
    axes.set_xlabel("points lost")
    return canvas


def draw_newcomers(came: NewcomerSummary) -> Canvas:
    """How far newcomers of each method are behind the best rule, and what its rule gains them."""
    lines = range(len(came.methods))
    canvas = Canvas(figsize=(7.2, 1.6 + LINE * max(2, len(came.methods))), layout="constrained")
    left, right = canvas.subplots(1, 2, sharey=True)
    left.barh(lines, came.behind, color=[_colour_of(m) for m in came.methods], height=0.6)
    left.set_xlabel("points behind the best rule")
    right.axvline(0, color="#555555", linewidth=0.8)
    right.scatter(came.alone, lines, color=COLOURS[0], s=22, label="over training alone")
    right.scatter(
        came.tuned,
        lines,
        facecolors="none",
        edgecolors=COLOURS[2],
        s=22,
        label="over the global model, fine-tuned",
    )
    right.set_xlabel("points that the rule gains")
    for axes in (left, right):
        _label_methods(axes, came.methods)
        _style_axes(axes)
    canvas.legend(loc="outside upper right", ncols=2, fontsize=8, frameon=False)
    return canvas


def draw_budgets(found: Mapping[int, Mapping[str, float]]) -> Canvas:
    """A line per method over the budgets, from its rank after few steps to that at the end."""
    steps = list(found)
    last = found[steps[-1]]
    canvas = Canvas(figsize=(7.2, 1.4 + 0.16 * len(last)), layout="constrained")
    axes = canvas.subplots()
    for k, name in enumerate(last):
        ranks = [found[s][name] for s in steps]
        bar = name in BASELINES
        colour = COLOURS[1] if bar else "#9aa5b1" if k > 4 else COLOURS[0]
        axes.plot(range(len(steps)), ranks, color=colour, linewidth=2 if bar or k < 5 else 0.8)
    places = np.linspace(1, len(last), len(last))
    for y, name in zip(places, last, strict=True):
        x = len(steps) - 1
        arrow = {"arrowstyle": "-", "color": "#d0d5db", "linewidth": 0.5}
        axes.annotate(
            name,
            (x, last[name]),
            (x + 0.12, y),
            fontsize=7,
            va="center",
            color=_colour_of(name),
            arrowprops=arrow,
            annotation_clip=False,
        )
    axes.set_xticks(range(len(steps)), [f"{s:,} steps" for s in steps])
    axes.set_xlim(-0.1, len(steps) - 0.55)
    axes.set_ylim(len(last) + 0.6, 0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("mean rank, 1 is best")
    return canvas
