"""The rows that every side of a comparison trains on, dealt by Coterie and written to one file."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from peers import nets

from coterie.core.model import Model
from coterie.core.rng import stream
from coterie.experiment.build import federation_of
from coterie.experiment.config import Experiment, change_options


class Comparison(NamedTuple):
    """A federated averaging run that several programs play."""

    label: str
    net: str  # as in peers/nets.py
    settings: dict[str, Any]  # the data, as words of an experiment
    rounds: int
    cohort: int  # clients per round
    rate: float
    sides: tuple[str, ...]
    batch: int = 10

    @property
    def arguments(self) -> list[str]:
        """The command line of every side, after the file."""
        settings = {k: getattr(self, k) for k in ("net", "rounds", "cohort", "batch", "rate")}
        return [text for k, v in settings.items() for text in (f"--{k}", str(v))]


def export(comparison: Comparison, folder: Path) -> Path:
    """Write the rows of a comparison, and the parameters that Coterie's run begins with."""
    path = folder / f"{comparison.net}-{comparison.settings['dataset']}.npz"
    if path.exists():
        return path
    data = federation_of(change_options(Experiment(), comparison.settings))
    rows = torch.as_tensor(np.concatenate([*data.train, *data.test]))
    model = Model(
        lambda: nets.build(comparison.net, data.input_shape), input_shape=data.input_shape
    )
    start = model.init(stream(0, "init")).params
    np.savez(
        path,
        x=data.x[rows].numpy(),
        y=data.y[rows].numpy(),
        starts=np.concatenate([[0], np.cumsum(data.sizes)]),
        **{f"init{k}": value.numpy() for k, value in enumerate(start.values())},
    )
    return path
