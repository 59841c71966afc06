"""The options of a finished run, read without the code that it was made with: what nothing here
knows stays as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.option_names import rename_tables
from coterie.experiment.config import (
    Experiment,
    change_options,
    flatten_options,
    read_experiment_file,
    read_toml,
)
from coterie.experiment.own_code import find_unknown

BESIDE = {"method": ("options",), "dataset": ("partition",)}  # what a name decides beside itself


def read_stored_experiment(path: Path) -> Experiment:
    """The experiment in the file of a run's folder; nothing that it names is loaded."""
    settings = rename_tables(read_toml(path))
    if "methods" in settings or not find_unknown(settings):
        return read_experiment_file(path)
    try:
        return restore_experiment(settings)
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}") from None


def restore_experiment(settings: Mapping[str, Any]) -> Experiment:
    """The experiment of nested options; sections whose names are unknown are taken as they are."""
    kinds = {kind for kind, _ in find_unknown(settings)}
    raw = {
        "method": ("method", "options"),
        "dataset": ("dataset", "partition"),
        "model": ("model",),
    }
    aside = {section for kind in kinds for section in raw[kind]}
    known = {k: v for k, v in settings.items() if k not in aside}
    method = {} if "method" in aside else {"method": settings.get("method", "")}
    base = Experiment(method="") if "method" in aside else Experiment()
    experiment = change_options(base, flatten_options({**known, **method}))
    kept: dict[str, Any] = {
        k: settings[k] if k == "method" else _check_table(settings[k], k)
        for k in aside
        if k in settings
    }
    return replace(experiment, **kept)


def _check_table(value: Any, section: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"[{section}] is no table: the file is damaged")
    return dict(value)


def drop_unknown(experiment: Experiment) -> Experiment:
    """The experiment without the parts that nothing here knows."""
    kinds = {kind for kind, _ in find_unknown(experiment.to_dict())}
    if "method" in kinds:
        experiment = replace(experiment, method="", options={})
    if "dataset" in kinds:
        experiment = replace(experiment, dataset={"name": "digits"}, partition={})
    return replace(experiment, model={}) if "model" in kinds else experiment
