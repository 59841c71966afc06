"""From words to a run on disk: build, check, train, checkpoint, resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Stage, stages
from coterie.data.federation import Federation
from coterie.engines.base import Settings
from coterie.engines.local.engine import LocalEngine
from coterie.engines.ray.engine import RayEngine
from coterie.experiment.build import Given, Networks, anchored, check_federation, check_words, federation_of, models_of, resolved
from coterie.experiment.config import PYTHON, Experiment
from coterie.experiment.schedule import Schedule
from coterie.methods.registry import METHODS
from coterie.running.loop import Loop


def start(experiment: Experiment, data: Given = None, models: Networks = None) -> tuple[Loop, Experiment]:
    """Everything built and checked, nothing run; the experiment with every default filled in."""
    check_words(experiment)
    experiment = anchored(experiment)
    federation = federation_of(experiment, data)
    if isinstance(data, Federation) and experiment.data["name"].startswith(PYTHON):
        check_federation(data)
    if not any(len(rows) for part in experiment.schedule.parts for rows in getattr(federation, part)):
        raise BadInput(f"parts = {','.join(experiment.schedule.parts)}, but no client has such rows: nothing could be measured")
    nets = models_of(experiment, federation, models)
    programs = [stages(METHODS[experiment.method](model, experiment.train, **experiment.options)) for model in nets]
    check_method(programs[0], federation, nets, experiment.schedule, experiment.method)
    architecture = np.arange(federation.clients) % len(nets)
    given = (federation, nets, programs, architecture, experiment.seed, _settings(experiment, len(nets)))
    wanted = experiment.engine
    if wanted.name == "ray":
        torch.set_num_threads(wanted.threads or 1)  # the server's sums are the same when the run is resumed
        engine: LocalEngine = RayEngine(*given, address=wanted.ray_address, actors=wanted.actors, threads=wanted.threads)
    else:
        engine = LocalEngine(*given)
        engine.free_threads = not wanted.threads
    return Loop(engine, federation, experiment.schedule, experiment.seed), resolved(experiment, federation, nets)


def _settings(experiment: Experiment, architectures: int) -> list[Settings]:
    """How each architecture runs: as was chosen once, else as is given, what is open being chosen in the first round."""
    given = experiment.engine
    chosen = [text.split(":") for text in given.chosen.split()]
    if not chosen or len(chosen) != architectures:
        return [Settings(given.path, given.width, given.compile)] * architectures
    try:
        return [Settings(path, int(width), compiled) for path, width, compiled in chosen]
    except ValueError:
        raise BadInput(f"chosen = '{given.chosen}': leave it out, it is written by a run") from None


def check_method(
    program: tuple[Stage, ...], federation: Federation, models: Sequence[Any], schedule: Schedule, name: str
) -> None:
    """Refuse, before any work, what this method cannot do with this federation."""
    for stage in program:
        needs = stage.method.needs
        if "validation" in needs and any(len(rows) == 0 for rows in federation.validation):
            raise BadInput(f"{name} chooses on validation data, and validation = 0 leaves none: raise --validation")
        if "public" in needs and federation.public is None:
            raise BadInput(
                f"{name} needs a public data set: give --public held-out --public-rows 300, or --public mnist, emnist or cifar100"
            )
        if "groups" in needs and len(set(np.asarray(federation.groups).tolist())) < 2:
            raise BadInput(f"{name} needs true groups: give --rotate or --permute, or a split that has them")
        if len(models) > 1 and not stage.method.mixed:
            raise BadInput(f"{name} needs one architecture for all clients, {len(models)} were given")
        for work in [*stage.method.round, *([stage.method.personalize] if stage.method.personalize else [])]:
            for p in work.passes:
                if p.plan and p.plan.part not in ("train", "validation", "public"):
                    raise BadInput(f"{name} asks for the part '{p.plan.part}', out of a method's reach")
                if p.plan and federation.public is not None and p.plan.draw > len(federation.public.x):
                    raise BadInput(
                        f"{name} draws {p.plan.draw} public rows a round, '{federation.public.name}' has "
                        f"{len(federation.public.x)}: lower the draw or raise --public-rows"
                    )
    if schedule.rounds < 1:
        raise BadInput(f"rounds = {schedule.rounds}: a run has at least one round")
    if schedule.sample <= 0 or schedule.sample > federation.clients:
        raise BadInput(f"sample = {schedule.sample:g}: give a share in (0, 1] or a count up to the {federation.clients} clients")
    if not 0 <= schedule.drop < 1:
        raise BadInput(f"drop = {schedule.drop:g}: give a chance in [0, 1)")
    if schedule.trains not in ("sampled", "all"):
        raise BadInput(f"trains = '{schedule.trains}': choose 'sampled' or 'all'")
