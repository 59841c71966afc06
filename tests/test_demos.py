"""Demos of the papers: each recipe runs, its story is told and drawn; pages and notebooks are
there with their outputs.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from coterie.analysis.answer import ACCURACY
from coterie.comparison.execute import compare
from coterie.comparison.plan import plan_of
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config
from coterie.lab.commands.demo import demo
from coterie.lab.demos.pictures import draw_story
from coterie.lab.demos.stories import STORIES, format_verdict, judge_claims, tell

ROOT = Path(__file__).parents[1]
SMALL = {"rounds": 3, "threads": 1, "compile": "no"}


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_and_drawn_from_a_short_run(name, tmp_path):
    story = STORIES[name]
    fewer = {} if name == "ktpfl" else {"rows": 600}  # half of its rows are public
    plan = plan_of(read_toml(find_config(story.recipe)), common=SMALL | fewer)
    assert {story.method, *story.rivals} <= set(plan.experiments)
    found = compare(plan.experiments, plan.seeds, tmp_path / "run")
    said = tell(story, found)
    assert said.startswith("The paper's claim (")
    assert all(rival in said for rival in story.rivals)
    canvas = draw_story(story, tmp_path / "run")
    panels = [axes for axes in canvas.axes if axes.get_title(loc="left")]
    assert len(panels) >= 2
    assert all(axes.has_data() for axes in panels)


class Found:
    """A comparison of made-up values: better than both rivals, or than the first alone."""

    measure, fixed_partition = ACCURACY, True

    def __init__(self, story, both: bool):
        base = np.linspace(0.4, 0.6, 20)[None]
        self.runs = dict.fromkeys(story.rivals, base) | {story.method: base + 0.2}
        if not both:
            self.runs[story.rivals[1]] = base + 0.2

    def client_values(self, method):
        return self.runs[method]


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_a_claim_holds_only_where_it_is_shown_over_every_rival(story):
    assert "holds here" in tell(story, Found(story, both=True))
    first, second = story.rivals
    expected = f"does not hold here over {second}, though over {first}"
    assert expected in tell(story, Found(story, both=False))


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_what_may_explain_the_gain_as_well_is_trained_and_said(story):
    """A gain over the paper's rivals is not the method's own if another explanation has it too."""
    found = Found(story, both=True)
    assert "Beside" not in tell(story, found)
    name, why = story.control
    if not name:
        assert set(story.rivals) == {"local", "fedmd"}  # the equal mean is a rival already
        return
    assert name in read_toml(find_config(story.recipe))["methods"]
    found.runs[name] = found.runs[story.method]
    said = tell(story, found)
    assert f" Beside {name}, {why}: +0.0 points [+0.0, +0.0], not significant." in said
    assert "holds here" in said


@pytest.mark.thorough
@pytest.mark.parametrize("name", STORIES)
def test_the_page_of_a_paper_says_what_its_demo_says_today(name, tmp_path):
    """A default that changes may turn a verdict; last digits are a machine's own."""
    story = STORIES[name]
    plan = plan_of(read_toml(find_config(story.recipe)), common={"threads": 1})
    found = compare(plan.experiments, plan.seeds, tmp_path / "run")
    page = (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    assert format_verdict(judge_claims(story, found)) in page


@pytest.mark.parametrize("name", STORIES)
def test_a_paper_has_its_page_picture_and_notebook_with_outputs(name):
    page = (ROOT / "docs" / "papers" / f"{name}.md").read_text(encoding="utf-8")
    for part in ("## Formula", f"coterie demo {name}", "## What holds", "## When to use it"):
        assert part in page
    assert (ROOT / "docs" / "pictures" / f"demo-{name}.png").stat().st_size < 300_000
    book = json.loads((ROOT / "examples" / "papers" / f"{name}.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    kinds = {kind for cell in code for out in cell["outputs"] for kind in out.get("data", {})}
    assert {"text/html", "image/png"} <= kinds
    said = "".join(o["text"] for c in code for o in c["outputs"] if o["output_type"] == "stream")
    assert "The paper's claim" in said
    assert find_config(STORIES[name].recipe).read_text() in said


def test_the_command_lists_the_demos_in_80_columns():
    said = CliRunner().invoke(demo, []).output
    assert all(name in said for name in STORIES)
    assert max(map(len, said.splitlines())) <= 80
