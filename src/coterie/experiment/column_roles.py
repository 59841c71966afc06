"""The client and label columns of a table of one's own, where nobody named them."""

from __future__ import annotations

from dataclasses import replace

from coterie.core.files import expand_home
from coterie.data.read.catalog import DATASETS
from coterie.data.read.column_roles import guess_columns, has_columns
from coterie.experiment.build import data_settings_of
from coterie.experiment.config import PYTHON, Experiment


def with_columns(experiment: Experiment) -> Experiment:
    """The experiment with the columns that a table's own names suggest; what was named stays."""
    data = experiment.dataset
    name = str(data["name"])
    if name in DATASETS or name.startswith(PYTHON) or not has_columns(expand_home(name)):
        return experiment
    known = data_settings_of(experiment)  # a language model's label is its text
    said = {
        option: known[option] for option in ("client", "label") if known.get(option) is not None
    }
    found = guess_columns(expand_home(name), said, str(data.get("separator") or ""))
    return replace(experiment, dataset={**data, **found})
