"""How the clients of an experiment differ, in a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.experiment.config import REGISTRIES, Experiment, options_of, resolve_names

SPLITS = {
    "": "as the data name them",
    "user": "as the data name them",
    "iid": "rows at random",
    "classes": "{classes_each} classes each",
    "dirichlet": "classes by Dirichlet({alpha:g})",
    "lognormal": "unequal numbers of rows",
    "powerlaw": "unequal numbers of rows",
    "pairs": "two classes each",
}
GROUPS = {"permute": "labels permuted", "rotate": "images rotated"}


def describe_differences(experiment: Experiment) -> str:
    """As in "rows at random, labels permuted in 4 groups"."""
    data: dict[str, Any] = dict(experiment.dataset)
    name = resolve_names(experiment)["partition"]
    known = options_of("partition", name) if name in REGISTRIES["partition"] else {}
    split = {key: default for key, (_, default) in known.items()} | dict(experiment.partition)
    settings = [SPLITS.get(name, f"partition {Path(name).name}").format(**split)]
    if name in ("", "user") and data.get("client"):
        settings = [f"by the column {data['client']}"]
    settings += [
        f"{what} in {data[option]} groups"
        for option, what in GROUPS.items()
        if data.get(option, 1) > 1
    ]
    return ", ".join(settings)
