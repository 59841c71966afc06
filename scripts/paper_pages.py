"""A page and a notebook per paper, from its demo: python scripts/paper_pages.py RUNS [NAME...].

Takes the comparison of `coterie demo NAME` from RUNS/demo-NAME, or runs it there, and writes
docs/papers/NAME.md with its picture and examples/papers/NAME.ipynb with its outputs. The idea of a
paper and when to use it is scripts/papers/NAME.md; the formula is the method's docstring.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import os
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import method_pages

import coterie
from coterie.cli.show import show_methods
from coterie.core.files import write_text
from coterie.core.version import __version__
from coterie.lab.demos.pictures import draw_story
from coterie.lab.demos.stories import STORIES, Story, tell
from coterie.results.comparison import Comparison

ROOT = Path(__file__).parents[1]
TEXTS = Path(__file__).parent / "papers"
DPI = 80


def main(arguments: list[str]) -> None:
    Path(arguments[0]).mkdir(parents=True, exist_ok=True)
    os.chdir(arguments[0])
    os.environ["COLUMNS"] = "80"
    for name in arguments[1:] or list(STORIES):
        story = STORIES[name]
        print(write_notebook(story))
        print(write_page(story, coterie.load(Path(story.recipe))))


def write_page(story: Story, found: Comparison) -> Path:
    """docs/papers/NAME.md and its picture."""
    name = story.method
    draw_story(story, found.folder).savefig(ROOT / f"docs/pictures/demo-{name}.png", dpi=DPI)
    idea, _, when = (TEXTS / f"{name}.md").read_text(encoding="utf-8").partition("## When")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    said = io.StringIO()
    with redirect_stdout(said):
        show_methods(found)
    table = "\n".join(line.rstrip() for line in said.getvalue().splitlines()).strip()
    parts = [
        f"# {story.paper}",
        idea.strip(),
        "## Formula",
        f"[All of it, with every option](../methods/{name}.md).",
        *formula_of(name),
        "## See it",
        f"`coterie demo {name}` (version {__version__}, {date}, seed 0):",
        tell(story, found),
        f"```\n{table}\n```",
        f"![{story.idea}](../pictures/demo-{name}.png)",
        "\n".join(f"- {line}" for line in story.look),
        story.limits,
        f"The same as a notebook with its outputs: `examples/papers/{name}.ipynb`. The setting is "
        f"the recipe `{story.recipe}`; it was settled on after a few tries whose results on test "
        "rows were seen, with one seed: take it as an illustration, and "
        "[the reproduction](../reproduction/index.md) as the evidence.",
        "## What holds in reproduction",
        f"{remark_of(story)} [Every table and figure](../reproduction/{name}.md).",
        f"## When{when}".strip(),
    ]
    page = ROOT / f"docs/papers/{name}.md"
    write_text(page, "\n\n".join(parts) + "\n")
    return page


def formula_of(name: str) -> list[str]:
    """The formulas at the head of the method's page."""
    text = (method_pages.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    inside = text.partition("## Objective")[2].partition("\n## ")[0].partition("Interpretations")[0]
    shown = inside[: inside.rindex("$$") + 2]  # what follows is said in full there
    return [part.strip() for part in shown.split("\n\n") if part.strip()]


def remark_of(story: Story) -> str:
    """What the page of reproduction says first."""
    text = (ROOT / f"docs/reproduction/{story.method}.md").read_text(encoding="utf-8")
    return text.split("\n\n")[1]


def cells_of(story: Story) -> list[tuple[str, str]]:
    """(kind, source) of the notebook's cells."""
    look = "\n".join(f"- {line}" for line in story.look)
    head = f"# {story.paper}\n\n{story.idea} The paper's claim: {story.claim}."
    return [
        ("markdown", head),
        (
            "code",
            "from pathlib import Path\n\nimport coterie\n"
            "from coterie.lab.demos.pictures import draw_story\n"
            "from coterie.lab.demos.stories import STORIES, tell\n\n"
            f'story = STORIES["{story.method}"]\nfolder = Path(story.recipe)',
        ),
        ("markdown", "The recipe, as a file: every option that is not a default."),
        (
            "code",
            "from coterie.experiment.recipes import find_config\n\n"
            "print(find_config(story.recipe).read_text())",
        ),
        ("markdown", "Train, under two minutes; what was trained before is loaded."),
        (
            "code",
            "if folder.exists():\n    result = coterie.load(folder)\nelse:\n"
            "    result = coterie.compare(config=story.recipe, out=folder)\nresult",
        ),
        ("markdown", "Does the claim hold on these rows?"),
        ("code", "print(tell(story, result))"),
        ("markdown", f"What to look at:\n\n{look}"),
        ("code", "draw_story(story, folder)"),
        ("markdown", f"Mind: {story.limits}"),
    ]


def write_notebook(story: Story) -> Path:
    """examples/papers/NAME.ipynb, its cells run here."""
    names: dict[str, Any] = {"__name__": story.method}
    made, count = [], 0
    for kind, source in cells_of(story):
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": source}
        if kind == "code":
            count += 1
            cell |= {"execution_count": count, "outputs": run_cell(source, names, count)}
        made.append(cell | {"id": f"{story.method}-{len(made)}"})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path = ROOT / f"examples/papers/{story.method}.ipynb"
    write_text(path, json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    return path


def run_cell(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and what it ends with."""
    *before, last = ast.parse(source).body
    shown = last if isinstance(last, ast.Expr) else None
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(ast.Module(before if shown else [*before, last], []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(shown.value), "cell", "eval"), names) if shown else None
    outputs: list[dict[str, Any]] = []
    if said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": said.getvalue()})
    if value is not None:
        data = {"text/plain": type(value).__name__}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        if hasattr(value, "_repr_png_"):
            picture = io.BytesIO()
            value.savefig(picture, format="png", dpi=DPI)
            data["image/png"] = base64.b64encode(picture.getvalue()).decode()
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": data,
            }
        )
    return outputs


if __name__ == "__main__":
    main(sys.argv[1:])
