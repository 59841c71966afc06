"""The Python face: the same words as on the command line."""

from __future__ import annotations

from pathlib import Path

from coterie.core.errors import BadInput, nearest
from coterie.experiment.config import PYTHON, Experiment

RECIPES = Path(__file__).parents[1] / "recipes"


def config_path(name: str | Path) -> Path:
    """A TOML file, or a recipe by its name."""
    path, recipe = Path(name), RECIPES / f"{name}.toml"
    if path.is_file() or not recipe.exists():
        if not path.exists():
            raise BadInput(
                f"there is no file '{name}' and no recipe of that "
                f"name{nearest(str(name), recipes())}"
            )
        return path
    return recipe


def recipes() -> list[str]:
    """Names of the recipes that come with coterie."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def data_name(experiment: Experiment) -> str:
    """The data of an experiment in one word, for the name of a folder."""
    return Path(str(experiment.data["name"]).removeprefix(PYTHON)).stem or "data"
