"""A picture of a split: which client holds how many rows of which class."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure

from coterie.core.errors import BadInput
from coterie.data.client_rows import counts_of
from coterie.data.federation import PARTS, Federation, count_classes, part_of

SUFFIXES = (".png", ".svg")
MAX_LABELLED = 600  # cells up to which the counts are written into them


def plot_partition(federation: Federation, path: str | Path) -> Path:
    """Draw clients x classes as a heat map under bars of the clients' rows, as PNG or SVG."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise BadInput(
            f"{path}: a picture is written as {' or '.join(SUFFIXES)}; change the suffix"
        )
    if not path.parent.is_dir():
        raise BadInput(f"{path}: there is no folder {path.parent}; make it first")
    counts = count_classes(federation)
    held = np.flatnonzero(
        counts.sum(0)
    )  # classes nobody holds (EMNIST's letters a-j of 62) are left out
    figure = _build_figure(federation, counts[:, held], held)
    with rc_context({"svg.hashsalt": "coterie"}):  # the same federation gives the same file
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def _build_figure(federation: Federation, counts: np.ndarray, held: np.ndarray) -> Figure:
    clients, classes = counts.shape
    written = 0 < counts.size <= MAX_LABELLED and clients <= 40
    width = min(14.0, max(6.5, 2.2 + 0.42 * clients if written else 14))
    height = 2.4 + (min(9.0, max(1.2, (0.3 if written else 0.26) * classes)) if classes else 0)
    figure = Figure(figsize=(width, height), layout="constrained")
    bars, *rest = figure.subplots(
        2 if classes else 1,
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": [1.3, height - 2.4]} if classes else None,
    )[:, 0]
    _draw_bars(bars, federation)
    if rest:
        _draw_map(figure, rest[0], federation, counts, held, written)
    bottom = rest[0] if rest else bars
    bottom.set_xlabel("client")
    bottom.set_xlim(-0.5, clients - 0.5)
    _name_clients(bottom, federation)
    return figure


def _draw_bars(axes, federation: Federation) -> None:  # type: ignore[no-untyped-def]
    """Stacked train, validation, select and test rows of each client."""
    at, base = np.arange(federation.clients), np.zeros(federation.clients)
    for option, colour in zip(PARTS, ("#08519c", "#6baed6", "#bdd7e7", "#fd8d3c"), strict=True):
        sizes = counts_of(part_of(federation, option))
        if sizes.any():
            axes.bar(
                at,
                sizes,
                bottom=base,
                width=0.8 if len(at) <= 60 else 1.0,
                color=colour,
                label=option,
            )
        base = base + sizes
    axes.set_ylabel("rows")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelbottom=federation.classes == 0)
    axes.legend(
        ncols=4,
        fontsize=8,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0,
    )
    axes.set_title(
        f"{federation.name}: {federation.clients:,} clients, "
        f"{base.min():,.0f} to {base.max():,.0f} rows",
        loc="left",
        fontsize=10,
        parse_math=False,  # a name may hold a dollar sign
    )


def _draw_map(  # type: ignore[no-untyped-def]
    figure: Figure,
    axes,
    federation: Federation,
    counts: np.ndarray,
    held: np.ndarray,
    written: bool,
) -> None:
    """One cell per client and class: white is none at all, one row is already blue."""
    # a logarithm keeps small counts apart beside large ones
    least, most = counts[counts > 0].min(), counts.max()
    norm = LogNorm(least, most) if most > 50 * least else Normalize(0, most)
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    cells = np.ma.masked_equal(counts.T, 0)
    shown = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap=blues, norm=norm)
    figure.colorbar(shown, ax=axes, label="rows", pad=0.01, aspect=12, format="{x:,.0f}")
    step = max(1, len(held) // 31)
    axes.set_yticks(
        range(0, len(held), step),
        [_label_of(federation, c) for c in held[::step]],
        parse_math=False,
    )
    axes.tick_params(labelsize=8)
    axes.set_ylabel("class")
    if written:
        digits = len(str(counts.max()))
        for client, label in np.argwhere(counts > 0):
            count = int(counts[client, label])
            colour = "white" if norm(count) > 0.55 else "black"
            size = 8 if digits < 4 else 6.5
            axes.text(
                client, label, str(count), ha="center", va="center", fontsize=size, color=colour
            )


def _label_of(federation: Federation, label: int) -> str:
    return federation.labels[label][:16] if federation.labels else str(label)


def _name_clients(axes, federation: Federation) -> None:  # type: ignore[no-untyped-def]
    """Every client's name where there is room, else a few of them."""
    step = 1 if federation.clients <= 40 else int(np.ceil(federation.clients / 20))
    at = range(0, federation.clients, step)
    names = [federation.names[i][:18] for i in at]
    slanted = max(map(len, names)) > 4 and len(names) > 8
    turned = {"rotation": 60, "ha": "right"} if slanted else {}
    axes.set_xticks(at, names, fontsize=8, parse_math=False, **turned)
