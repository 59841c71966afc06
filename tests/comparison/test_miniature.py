"""Miniatures of the recipes: they are small, the same every time, and a changed figure is told."""

import json

import pytest
from click.testing import CliRunner

from coterie.comparison.plan import plan_of
from coterie.core.errors import BadInput
from coterie.experiment.config import read_toml
from coterie.experiment.recipes import find_config, list_recipes
from coterie.lab.commands.reproduce import reproduce
from coterie.lab.papers import miniatures
from coterie.lab.papers.paper_tables import read_papers

RECIPE = "pfml-synthetic-mixed"  # its data are made, so it runs anywhere


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A file of figures of the test's own."""
    monkeypatch.setattr(miniatures, "LOSSES_FILE", tmp_path / "stored.json")
    return tmp_path / "stored.json"


def test_every_recipe_of_the_papers_has_stored_figures():
    wanted = miniatures.recipes_of(read_papers().values())
    known = json.loads(miniatures.LOSSES_FILE.read_text())
    without = {"selffl-sent140"}  # its data cannot be had everywhere
    assert set(wanted) - without == set(known) - without
    assert set(wanted) <= set(list_recipes())


def test_what_is_stored_is_found_again_and_a_changed_figure_is_told(stored, tmp_path):
    first = miniatures.check_miniatures([RECIPE], tmp_path / "a")
    assert {d.stored for d in first.differences} == {None}
    miniatures.store_losses(first.found)
    again = miniatures.check_miniatures([RECIPE], tmp_path / "b")
    assert not again.differences
    assert again.found == first.found
    figures = json.loads(stored.read_text())
    method, loss = next(iter(figures[RECIPE].items()))
    figures[RECIPE][method] = loss * 1.02
    stored.write_text(json.dumps(figures))
    (told,) = miniatures.check_miniatures([RECIPE], tmp_path / "c").differences
    assert (told.recipe, told.method, told.found) == (RECIPE, method, loss)


def test_a_recipe_without_its_data_is_told_and_stops_no_other(stored, tmp_path, monkeypatch):
    whole = miniatures.load_federation

    def gather(experiment):
        if experiment.dataset["name"] == "mnist":
            raise BadInput("its data are not here")
        return whole(experiment)

    monkeypatch.setattr(miniatures, "load_federation", gather)
    found = miniatures.check_miniatures(["selffl-mnist", RECIPE], tmp_path)
    assert found.missing == {"selffl-mnist": "its data are not here"}
    assert list(found.found) == [RECIPE]


def test_the_papers_own_method_is_among_the_chosen():
    for name in miniatures.recipes_of(read_papers().values()):
        methods = list(plan_of(read_toml(find_config(name))).experiments)
        chosen = miniatures.select_methods(methods)
        assert set(chosen) <= set(methods)
        assert len(chosen) == min(miniatures.METHODS, len(methods))
        own = [
            m for m in methods if m.startswith(miniatures.PAPER_METHODS)
        ]  # none where only baselines are
        assert set(chosen) & set(own) or not own, name


def test_store_without_check_is_refused():
    outcome = CliRunner().invoke(reproduce, ["--store"])
    assert isinstance(outcome.exception, BadInput)
    assert "--check" in str(outcome.exception)
