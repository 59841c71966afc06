"""The methods that are compared where nobody names any."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.core.errors import BadInput
from coterie.experiment.build import Given, Networks
from coterie.experiment.config import Experiment
from coterie.running.assembly import assemble, load_federation, open_loop
from coterie.running.execute import threads_of

# nobody helps, one model for all, and four ways between: adapted after, pulled to the common model,
# own last layers, helpers chosen by likeness
DEFAULT_METHODS = ("local", "fedavg", "finetune", "ditto", "fedper", "ucfl")


def find_runnable(
    planned: Mapping[str, Experiment], data: Given = None, models: Networks = None
) -> tuple[list[str], dict[str, BadInput]]:
    """The methods that these data and networks allow, and why the others are refused."""
    federation = load_federation(next(iter(planned.values())), data)
    refused: dict[str, BadInput] = {}
    for name, experiment in planned.items():
        try:
            with threads_of(experiment):
                open_loop(assemble(experiment, federation, models))
        except BadInput as problem:
            refused[name] = problem
    if len(refused) == len(planned):
        raise next(iter(refused.values()))
    return [name for name in planned if name not in refused], refused
