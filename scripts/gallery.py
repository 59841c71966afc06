"""Pictures as the papers have them: python scripts/gallery.py RUNS DOCS runs three small
comparisons in RUNS (or takes them from there) and writes DOCS/gallery.md and its pictures.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.comparison.execute import compare, resume_comparison
from coterie.comparison.plan import FILE, plan_of
from coterie.core.files import write_text
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.reports.content import build_figures
from coterie.reports.draw import draw_figure
from coterie.reports.evidence import Evidence
from coterie.reports.figures import Figure, Series, slugify
from coterie.reports.gather import gather_evidence
from coterie.reports.histograms import bars

DPI = 72  # no picture over 100 kB
HEAD = """# Gallery

What the program draws. The two pictures of the report are made by `make screenshots`, the split by
`coterie data` in the [tutorial](tutorial.md), the packages by `make docs`, and the others by
`make gallery` from three small comparisons; every report has them for its own runs.

## The top of a report

![The answer, and the table of methods](pictures/report.png)

## A client's page in a report

![A client's accuracy under each method, in dark colours](pictures/client.png)

## A split

![Rows of each part and of each class at each client](pictures/tutorial-split.png)

## The packages of the code

![The packages as boxes, an arrow for every import](pictures/packages.svg)
"""

FIGURE_3 = """## Self-FL's Figure 3, from our runs of its recipes

The clients of the runs that
[Reproduction](reproduction.md#selffl-figure-3-self-fl-figure-3) judges.
"""


class Shown(NamedTuple):
    """A comparison, and the keys of its figures that are shown."""

    name: str
    says: str
    recipe: str
    methods: tuple[str, ...]
    rounds: int
    keys: tuple[str, ...]


SHOWN = (
    Shown(
        name="groups",
        says="Twenty clients in four groups that number the digits differently (`demo-groups`)",
        recipe="demo-groups",
        methods=("local", "fedavg", "ditto", "ucfl", "fedfomo", "ktpfl-h"),
        rounds=60,
        keys=(
            *("curves", "time-slow-uplink", "time-fast-uplink", "time-wired"),
            *("W-ucfl", "P-fedfomo", "c-ktpfl-h"),
        ),
    ),
    Shown(
        name="classes",
        says="Clients that hold few of the ten digits (`digits-classes`)",
        recipe="digits-classes",
        methods=("local", "fedavg", "finetune", "ditto", "persfl"),
        rounds=40,
        keys=(
            *("qoi", "evenness", "ends", "histogram", "deciles", "global"),
            *("interaction", "grid_accuracy-persfl", "lambda-persfl"),
        ),
    ),
    Shown(
        name="steps",
        says="Self-FL's Figures 11 and 12: local steps on MNIST (`selffl-mnist-parts`)",
        recipe="selffl-mnist-parts",
        methods=("selffl",),
        rounds=200,
        keys=("histogram-raw_steps-selffl", "raw_steps-selffl"),
    ),
)


def main(arguments: Sequence[str]) -> None:
    """Run, draw and write."""
    runs, docs = (Path(argument) for argument in arguments)
    parts = [HEAD]
    for shown in SHOWN:
        evidence = played(shown, runs / shown.name)
        parts.append(f"## {shown.says}\n\n{command(shown)}\n")
        for figure in chosen(shown, evidence):
            file = f"gallery-{shown.name}-{figure.key}.png"
            draw_figure(figure, evidence.methods).savefig(docs / "pictures" / file, dpi=DPI)
            parts.append(f"### {figure.title}\n\n![{figure.title}](pictures/{file})\n")
    parts.append(FIGURE_3)
    for figure in papers_histograms(docs / "results"):
        file = f"gallery-selffl-{figure.key}.png"
        draw_figure(figure, ["fedavg", "selffl"]).savefig(docs / "pictures" / file, dpi=DPI)
        parts.append(f"![{figure.title}](pictures/{file})\n")
    write_text(docs / "gallery.md", "\n".join(parts))


def command(shown: Shown) -> str:
    """How a reader gets the same."""
    return (
        f"`coterie compare --config {shown.recipe} --methods {','.join(shown.methods)} "
        f"--rounds {shown.rounds}`"
    )


def played(shown: Shown, folder: Path) -> Evidence:
    """The comparison's runs; they are made where they are not there."""
    if (folder / FILE).exists():
        resume_comparison(folder)
    else:
        settings = read_toml(find_config(shown.recipe)) | {"seeds": [0]}
        common = {"rounds": shown.rounds, "threads": 1, "compile": "no"}
        plan = plan_of(settings, shown.methods, common=common, strict=False)
        compare(plan.experiments, plan.seeds, folder)
    return gather_evidence([folder])


def chosen(shown: Shown, evidence: Evidence) -> Iterator[Figure]:
    """The figures that are shown, in the order of their keys."""
    figures = {figure.key: figure for figure in build_figures(evidence)}
    if "grid_accuracy-persfl" in figures:
        figures["interaction"] = interaction(figures["grid_accuracy-persfl"])
    return (figures[key] for key in shown.keys)


def papers_histograms(results: Path) -> Iterator[Figure]:
    """Self-FL's Figure 3, from what is kept of our runs."""
    for column in json.loads((results / "selffl-figure-3.json").read_text())["columns"]:
        first = {m: runs[0]["clients"] for m, runs in column["methods"].items()}
        series = bars({m: 100 * np.array(v, float) for m, v in first.items()}, top=100.0)
        title = f"Clients by test accuracy: {column['column']}"
        note = f"How many clients end in which range; recipe {column['recipe']}, seed 0."
        key = f"figure-3-{slugify(column['column'])}"
        yield Figure(key, title, note, "bars", "test accuracy (%)", "clients", series)


def interaction(grid: Figure) -> Figure:
    """The grid of PersFL's students as lines, one per temperature."""
    heat = grid.heat
    assert heat is not None, "the grid is a heat map"
    cells = np.array(heat.frames[-1][1], dtype=float)  # [lambda, T]; without a teacher T is alike
    cells = np.where(np.isnan(cells), cells[:, :1], cells)
    x = [float(row) for row in heat.rows]
    series = tuple(
        Series(f"T = {name}", x, cells[:, k].tolist()) for k, name in enumerate(heat.columns)
    )
    return Figure(
        key="interaction",
        title="Interaction of lambda and temperature: persfl",
        note="Mean over clients on validation rows. Parallel lines: the two act independently.",
        kind="lines",
        x=grid.y,
        y="validation accuracy (%)",
        series=series,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
