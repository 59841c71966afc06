"""The recipes that come with coterie, and where the words of an experiment are read from."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.core.errors import BadInput, nearest, shown
from coterie.core.files import there
from coterie.experiment.config import PYTHON, Experiment

RECIPES = Path(__file__).parents[1] / "recipes"
NAME = 60  # letters of the data's name in the name of a folder


def config_path(name: str | Path) -> Path:
    """A TOML file, or a recipe by its name."""
    path, recipe = Path(name), RECIPES / f"{name}.toml"
    if there(path) and not (path.is_dir() and there(recipe)):
        return path
    if not there(recipe):
        raise BadInput(
            f"there is no file {shown(str(name))} and no recipe of that "
            f"name{nearest(str(name), recipes())}"
        )
    return recipe


def recipes() -> list[str]:
    """Names of the recipes that come with coterie."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def data_name(experiment: Experiment) -> str:
    """The data of an experiment in one short word, for the name of a folder."""
    stem = Path(str(experiment.data["name"]).removeprefix(PYTHON)).stem
    return re.sub(r"[\x00-\x1f/\\]", "_", stem)[:NAME] or "data"
