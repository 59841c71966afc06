"""A report's figures as PNG and SVG for papers, by matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Plain
from matplotlib.ticker import MaxNLocator

from coterie.reports.figures import Figure, Series

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f5aa2",
    "#8c6d31",
    "#555555",
    "#b2182b",
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)))
MARKERS = "osD^vP"
SUFFIXES = (".png", ".svg")
MAX_LARGE_DOTS = 200  # dots that are drawn small
MAX_TICKS = 24  # names written on an axis at most
MAX_PANELS = 4  # frames of a heat map on paper
MAX_NUMBERED_CELLS = 150  # cells of a heat map that carry their number
AXIS_CHARACTERS = 72  # letters on an axis
NAME_CHARACTERS = 14  # characters of a name on an axis


class Canvas(Plain):
    """A figure that a notebook shows, with or without pyplot."""

    def _repr_png_(self) -> bytes:
        out = BytesIO()
        self.savefig(out, format="png", dpi=110)
        return out.getvalue()


class Style(NamedTuple):
    """A method's looks, told apart by more than colour."""

    colour: str
    dash: Any
    marker: str


def assign_styles(methods: Sequence[str], figure: Figure) -> dict[str, Style]:
    """The looks of every name in a figure; a method has the same in all of them."""
    others = [s.name for s in figure.series if s.name not in methods]
    shown = any(s.name in methods for s in figure.series)
    placed = [*enumerate(methods), *enumerate(others, len(methods) if shown else 0)]
    return {
        n: Style(COLOURS[k % 10], DASHES[k // 10 % len(DASHES)], MARKERS[k % len(MARKERS)])
        for k, n in placed
    }


def save_figure(figure: Figure, methods: Sequence[str], folder: Path) -> list[Path]:
    """Write one figure under its key."""
    canvas = draw_figure(figure, methods)
    paths = [folder / f"{figure.key}{suffix}" for suffix in SUFFIXES]
    with rc_context({"svg.hashsalt": "coterie"}):  # the same figure gives the same file
        for path in paths:
            canvas.savefig(
                path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None
            )
    return paths


def draw_figure(figure: Figure, methods: Sequence[str]) -> Canvas:
    """The figure, with how to read it below."""
    looks = assign_styles(methods, figure)
    if figure.heat:
        canvas = _draw_heat(figure)
    else:
        canvas = Canvas(figsize=(7.2, 4.6), layout="constrained")
        axes = canvas.subplots()
        _draw_axes(axes, figure, looks)
        if len(figure.series) > 1 or figure.series[0].name in methods:
            canvas.legend(
                *axes.get_legend_handles_labels(),
                loc="outside right upper",
                fontsize=8,
                frameon=False,
                ncols=1 + (len(figure.series) - 1) // 22,
            )
    canvas.suptitle(figure.title, fontsize=12, x=0.01, ha="left", parse_math=False)
    width = int(13.5 * canvas.get_figwidth())
    note = "\n".join(textwrap.wrap(figure.note, width))
    canvas.supxlabel(note, fontsize=8, color="#5b6675", x=0.01, ha="left", parse_math=False)
    return canvas


def draw_panels(figures: Sequence[Figure], methods: Sequence[str], title: str) -> Canvas:
    """Several figures side by side in one picture, each with a legend of its own."""
    canvas = Canvas(figsize=(4.4 * len(figures), 4.4), layout="constrained")
    for axes, figure in zip(
        canvas.subplots(1, len(figures), squeeze=False)[0], figures, strict=True
    ):
        if figure.heat:
            shown = _draw_cells(axes, figure, figure.heat.frames[-1][1], numbered=False)
            canvas.colorbar(shown, ax=axes, pad=0.01, aspect=30)
        else:
            _draw_axes(axes, figure, assign_styles(methods, figure))
            if len(figure.series) > 1:
                # at the foot of bars it hides no end of one
                where = "lower left" if figure.kind == "bars" else "best"
                axes.legend(fontsize=7, framealpha=0.9, edgecolor="none", loc=where)
        axes.set_title(figure.title, fontsize=10, loc="left", parse_math=False)
    folded = textwrap.fill(title, int(10 * canvas.get_figwidth()))
    canvas.suptitle(folded, fontsize=12, x=0.01, ha="left", parse_math=False)
    return canvas


def _draw_axes(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    """All of a figure but its legend."""
    DRAWERS[figure.kind](axes, figure, looks)
    lying = figure.kind == "forest"
    axes.set_xlabel(figure.y if lying else figure.x, parse_math=False)
    axes.set_ylabel(figure.x if lying else figure.y, parse_math=False)
    if not lying:
        _use_integer_ticks(axes, figure)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e8ee", linewidth=0.8)
    axes.set_axisbelow(True)


def _use_integer_ticks(axes: Axes, figure: Figure) -> None:
    """No tick at round 2.5."""
    for line, values in (
        (axes.xaxis, [v for s in figure.series for v in s.x]),
        (axes.yaxis, [v for s in figure.series for v in s.y]),
    ):
        if values and all(not isinstance(v, str) and v == round(v) for v in values if v == v):
            line.set_major_locator(MaxNLocator(integer=True))


def _category_positions(figure: Figure) -> tuple[dict[Any, int], bool]:
    """The place of every category, and whether there are any."""
    names = list(dict.fromkeys(x for s in figure.series for x in s.x))
    return {name: k for k, name in enumerate(names)}, any(isinstance(name, str) for name in names)


def _name_axis(axes: Axes, names: Sequence[str], room: float = AXIS_CHARACTERS) -> None:
    """Names side by side where they fit into so many letters, else slanted, else only some."""
    step = -(-len(names) // int(room / 3))
    words = [
        textwrap.shorten(n, 2 * NAME_CHARACTERS, placeholder="…")
        if " " in n
        else n[: 2 * NAME_CHARACTERS]
        for n in names[::step]
    ]
    folded = [textwrap.fill(word, NAME_CHARACTERS) for word in words]
    slanted = (
        len(words) * (1 + max(len(line) for word in folded for line in word.splitlines() or [""]))
        > room
    )
    turned: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    )
    words = words if slanted else folded
    axes.set_xticks(range(0, len(names), step), words, fontsize=8, parse_math=False, **turned)


def _draw_lines(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    for s in figure.series:
        style = looks[s.name]
        marker = style.marker if len(s.x) <= 25 else None
        axes.plot(
            s.x,
            _to_floats(s.y),
            color=style.colour,
            ls=style.dash,
            marker=marker,
            ms=4,
            lw=1.6,
            label=_escape_label(s),
        )
        if s.low:
            axes.fill_between(
                s.x, _to_floats(s.low), _to_floats(s.high), color=style.colour, alpha=0.12, lw=0
            )


def _draw_density(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    for s in figure.series:
        style = looks[s.name]
        axes.plot(
            s.x, _to_floats(s.y), color=style.colour, ls=style.dash, lw=1.6, label=_escape_label(s)
        )
        axes.fill_between(s.x, 0, _to_floats(s.y), color=style.colour, alpha=0.08, lw=0)
    axes.axvline(0, color="#5b6675", lw=0.8)
    axes.set_ylim(bottom=0)


def _draw_dots(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    place, named = _category_positions(figure)
    for k, s in enumerate(figure.series):
        style = looks[s.name]
        step = 0.7 * ((k + 0.5) / len(figure.series) - 0.5) if named else 0.0
        x = [place[v] + step for v in s.x] if named else s.x
        axes.scatter(
            x,
            _to_floats(s.y),
            s=26 if named else 7,
            color=style.colour,
            marker=style.marker,
            alpha=0.85,
            lw=0,
            label=_escape_label(s),
        )
    if named:
        _name_axis(axes, list(place))


def _draw_points(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    size = 26 if len(figure.series[0].x) <= MAX_LARGE_DOTS else 7
    for s in figure.series:
        style = looks[s.name]
        axes.scatter(
            _to_floats(s.x),
            _to_floats(s.y),
            s=size,
            color=style.colour,
            marker=style.marker,
            alpha=0.7,
            lw=0,
            label=_escape_label(s),
        )
    numbers = np.concatenate([_to_floats([*s.x, *s.y]) for s in figure.series])
    ends = [np.nanmin(numbers), np.nanmax(numbers)]
    axes.plot(ends, ends, color="#5b6675", lw=0.8)  # here both models serve a client alike


def _draw_bars(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    place, _ = _category_positions(figure)
    width = 0.8 / len(figure.series)
    for k, s in enumerate(figure.series):
        x = np.array([place[v] for v in s.x]) + (k + 0.5) * width - 0.4
        own = len(figure.series) == 1 and all(name in looks for name in s.x)  # a bar per method
        colours = [looks[name].colour for name in s.x] if own else looks[s.name].colour
        y = _to_floats(s.y)
        axes.bar(x, y, 0.92 * width, color=colours, label=_escape_label(s))
        if s.low:
            ends = np.abs(np.nan_to_num(np.stack([y - _to_floats(s.low), _to_floats(s.high) - y])))
            axes.errorbar(x, y, ends, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=1.5)
    _name_axis(axes, list(place))


def _draw_forest(axes: Axes, figure: Figure, looks: dict[str, Style]) -> None:
    """Differences lying down, the best method on top."""
    place, _ = _category_positions(figure)
    for k, s in enumerate(figure.series):
        style, y = looks[s.name], _to_floats(s.y)
        at = np.array([place[v] for v in s.x]) + 0.25 * (k - (len(figure.series) - 1) / 2)
        ends = np.abs(np.nan_to_num(np.stack([y - _to_floats(s.low), _to_floats(s.high) - y])))
        axes.errorbar(
            y,
            at,
            xerr=ends if s.low else None,
            fmt=style.marker,
            color=style.colour,
            ms=5,
            elinewidth=1,
            capsize=2,
            label=_escape_label(s),
        )
    axes.axvline(0, color="#5b6675", lw=0.8)
    axes.set_yticks(range(len(place)), [str(n) for n in place], fontsize=8, parse_math=False)
    axes.invert_yaxis()


def _draw_heat(figure: Figure) -> Canvas:
    """One panel, or a few frames from the first to the last."""
    assert figure.heat
    frames = figure.heat.frames
    picked = [
        frames[k]
        for k in np.unique(
            np.linspace(0, len(frames) - 1, min(MAX_PANELS, len(frames))).round().astype(int)
        )
    ]
    canvas = Canvas(figsize=(min(14.0, 5.6 + 3.2 * (len(picked) - 1)), 4.8), layout="constrained")
    for k, (axes, (title, z)) in enumerate(
        zip(canvas.subplots(1, len(picked), sharey=True, squeeze=False)[0], picked, strict=True)
    ):
        shown = _draw_cells(
            axes, figure, z, AXIS_CHARACTERS if len(picked) == 1 else AXIS_CHARACTERS / 2
        )
        axes.set_title(title, fontsize=9, parse_math=False)
        if k:
            axes.set_ylabel("")
    canvas.colorbar(shown, ax=canvas.axes, pad=0.01, aspect=30)
    return canvas


def _find_limits(frames: Sequence[tuple[str, Any]], diverging: bool) -> tuple[float, float]:
    """The ends of the colours, the same for all frames."""
    values = np.array([z for _, z in frames], dtype=float)
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    if diverging:
        return -max(-low, high), max(-low, high)
    return low, high if high > low else low + 1


def _draw_cells(
    axes: Axes,
    figure: Figure,
    z: Sequence[Sequence[float]],
    room: float = AXIS_CHARACTERS / 2,
    numbered: bool = True,
) -> Any:
    """One frame of a heat map; small ones carry their numbers."""
    assert figure.heat
    rows, columns, frames, diverging = figure.heat
    low, high = _find_limits(frames, diverging)
    cells = np.array(z, dtype=float)
    shown = axes.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        cmap="PuOr_r" if diverging else "Blues",
        vmin=low,
        vmax=high,
    )
    axes.set_facecolor("#e3e6ea")
    _name_axis(axes, columns, room)
    step = -(-len(rows) // MAX_TICKS)
    axes.set_yticks(
        range(0, len(rows), step),
        [n[: 2 * NAME_CHARACTERS] for n in rows[::step]],
        fontsize=8,
        parse_math=False,
    )
    axes.set_xlabel(figure.x, parse_math=False)
    axes.set_ylabel(figure.y, parse_math=False)
    if numbered and cells.size <= MAX_NUMBERED_CELLS and len(columns) <= 12:
        for i, j in np.argwhere(~np.isnan(cells)):
            dark = (
                abs(cells[i, j]) > 0.6 * high
                if diverging
                else (cells[i, j] - low) / (high - low) > 0.6
            )
            axes.text(
                j,
                i,
                f"{cells[i, j]:.3g}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if dark else "black",
            )
    return shown


def _to_floats(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values], dtype=float)


def _escape_label(series: Series) -> str:
    return series.name.replace("$", r"\$")  # a legend reads formulas


DRAWERS: dict[str, Callable[[Axes, Figure, dict[str, Style]], None]] = {
    "lines": _draw_lines,
    "density": _draw_density,
    "dots": _draw_dots,
    "points": _draw_points,
    "bars": _draw_bars,
    "forest": _draw_forest,
}
