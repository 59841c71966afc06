"""A picture of an explanation: importance, reliability or dependence, and coverage by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.analysis.nan_math import mean_of
from coterie.analysis.scores import find_score
from coterie.serving.explaining import Dependence, Explained

MAX_BARS = 12  # columns that are drawn


def draw_explained(found: Explained, classes: Sequence[str], path: Path) -> None:
    """Panels side by side, as PNG or SVG."""
    panels = [_draw_importance]
    panels += [_draw_reliability] if found.curve else []
    panels += [_draw_coverage] if len(found.clients) > 1 else []
    shown = found.clients[0].dependence
    figure = Figure(figsize=(4.2 * (len(panels) + len(shown)), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels) + len(shown), squeeze=False)[0]
    for place, draw in zip(axes, panels, strict=False):
        draw(place, found)
    for place, one in zip(axes[len(panels) :], shown, strict=True):
        _draw_dependence(place, one, classes)
    with rc_context({"svg.hashsalt": "coterie"}):  # the same run gives the same file
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_importance(axes: Axes, found: Explained) -> None:
    means = {n: mean_of([one.importance[n] for one in found.clients]) for n in found.columns}
    order = sorted(means, key=lambda name: np.nan_to_num(means[name], nan=-np.inf))[-MAX_BARS:]
    score = find_score(found.measure)
    scale = 100 if score.share else 1
    axes.barh(order, [scale * means[name] for name in order], color="tab:blue")
    axes.axvline(0, color="0.5", linewidth=0.8)
    unit = " (points)" if score.share else ""
    axes.set_xlabel(f"{score.label} lost when permuted{unit}")
    whose = f"{len(found.clients)} clients" if len(found.clients) > 1 else found.clients[0].client
    axes.set_title(f"Importance, {whose}")


def _draw_reliability(axes: Axes, found: Explained) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":")
    for curve, name, mark in (
        (found.curve, "as trained", "o-"),
        (found.curve_after, "at its temperature", "s--"),
    ):
        axes.plot([b.confidence for b in curve], [b.right for b in curve], mark, label=name)
    axes.set(xlabel="confidence", ylabel="share that is right", title="Reliability on test rows")
    axes.legend()


def _draw_coverage(axes: Axes, found: Explained) -> None:
    sure = [one.sureness for one in found.clients if one.sureness.tested]
    axes.plot([s.tested for s in sure], [s.covered / s.tested for s in sure], "o", alpha=0.6)
    axes.axhline(sure[0].confidence, color="0.5", linestyle=":")
    axes.set(
        xlabel="test rows of a client",
        ylabel="share that is covered",
        ylim=(0, 1.03),
        title=f"Coverage at {sure[0].confidence:.0%}",
    )


def _draw_dependence(axes: Axes, one: Dependence, classes: Sequence[str]) -> None:
    places = range(len(one.values))
    answers = one.answers.reshape(len(one.values), -1)
    binary = answers.shape[1] == 2
    for k in range(1 if binary else 0, answers.shape[1]):
        axes.plot(places, answers[:, k], "o-", label=classes[k] if classes else None)
    axes.set_xticks(list(places), one.values, rotation=30)
    axes.set(xlabel=one.column, title="Partial dependence")
    axes.set_ylabel("mean probability" if classes else "mean prediction")
    if classes:
        axes.legend()
