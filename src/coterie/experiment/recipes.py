"""The recipes that come with coterie, and where the options of an experiment are read from."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.files import path_exists
from coterie.experiment.config import PYTHON, Experiment

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "recipes", PACKAGE / "lab" / "recipes")  # for everybody, and of the papers
MAX_NAME = 60  # letters of the data's name in the name of a folder


def find_config(name: str | Path) -> Path:
    """A TOML file, or a recipe by its name."""
    path, recipe = Path(name), _recipe_paths().get(str(name))
    if path_exists(path) and not (path.is_dir() and recipe):
        return path
    if recipe is None:
        raise BadInput(
            f"there is no file {format_value(str(name))} and no recipe of that "
            f"name{suggest_name(str(name), list_recipes())}"
        )
    return recipe


def list_recipes() -> list[str]:
    """Names of the recipes that come with coterie."""
    return sorted(_recipe_paths())


def _recipe_paths() -> dict[str, Path]:
    return {path.stem: path for folder in FOLDERS for path in folder.glob("*.toml")}


def data_name_of(experiment: Experiment) -> str:
    """The data of an experiment in one short word, for the name of a folder."""
    stem = Path(str(experiment.dataset["name"]).removeprefix(PYTHON)).stem
    return re.sub(r"[\x00-\x1f/\\:]", "_", stem)[:MAX_NAME] or "data"
