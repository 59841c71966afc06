"""`coterie demo`: one idea per paper, in two minutes, on data that the package brings."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table as Grid

from coterie.cli.printing import print_line, print_table
from coterie.cli.show import resumable_work, show_methods, wrap_text
from coterie.comparison import execute as comparisons
from coterie.comparison.plan import plan_of
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.demos.pictures import draw_story
from coterie.lab.demos.stories import STORIES, Story, find_story, tell
from coterie.reports.report import write_report
from coterie.results.comparison import Comparison
from coterie.results.folder import make_run_folder


@click.command(short_help="One idea per paper in two minutes, with a picture.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder; default runs/TIME-demo-NAME.")
@click.option("--quiet", is_flag=True, help="No progress display.")
def demo(name: str | None, out: Path | None, quiet: bool) -> None:
    """Show the idea of the paper NAME (persfl, pfml, ktpfl, selffl, ucfl) on embedded data.

    Trains what its recipe says beside Local and FedAvg, says whether the paper's claim holds here,
    and draws what to look at. Without NAME: what there is.
    """
    if name is None:
        _list_stories()
        return
    story = find_story(name)
    plan = plan_of(read_toml(find_config(story.recipe)))
    print_line(wrap_text(f"{story.paper}: {story.idea}"))
    with (
        make_run_folder(out, story.recipe) as folder,
        resumable_work(folder, quiet, comparisons.count_runs(plan)) as show,
    ):
        found = comparisons.compare(plan.experiments, plan.seeds, folder, show)
    show_story(story, found)


def show_story(story: Story, found: Comparison) -> None:
    """The sentence, the methods, the picture and what to look at."""
    print_line("\n" + wrap_text(tell(story, found)))
    show_methods(found)
    picture = found.folder / f"{story.method}.png"
    draw_story(story, found.folder).savefig(picture, dpi=110)
    print_line(f"picture: {picture}")
    for line in story.look:
        print_line(f"  {line}")
    print_line(wrap_text(f"Mind: {story.limits}"))
    print_line(f"report: {write_report([found.folder])}")
    print_line(f"as a file: coterie compare --config {story.recipe}")


def _list_stories() -> None:
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("demo", no_wrap=True)
    grid.add_column("idea")
    for name, story in STORIES.items():
        grid.add_row(name, f"{story.paper}: {story.idea}")
    print_table(grid, 80)
    print_line("Run one as in `coterie demo persfl`; each takes under two minutes.")
