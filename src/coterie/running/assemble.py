"""A run put together: data, networks, the method's program, and the engine that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from coterie.analysis.scores import check_metric
from coterie.core.errors import BadInput
from coterie.core.method import Stage, stages
from coterie.core.model import Model
from coterie.core.private import PrivateModel
from coterie.data.federation import Federation, part_of, read_once, refitted, with_select
from coterie.data.pieces import Own
from coterie.engines.base import Engine, Setup
from coterie.engines.registry import ENGINES
from coterie.engines.settings import Settings, read_all
from coterie.experiment.build import (
    Given,
    Networks,
    anchored,
    check_federation,
    check_words,
    federation_of,
    models_of,
    resolved,
    rows_of,
)
from coterie.experiment.config import PYTHON, Experiment, Words, options_of
from coterie.methods.declare import Told, told
from coterie.methods.registry import METHODS
from coterie.running.budget import Budget, budget_of, check_private
from coterie.running.guarding import Gate, attackers_of, check_guard
from coterie.running.loop import Answers, Loop, facts, lengths
from coterie.running.newcomer_rows import check_newcomers
from coterie.running.public_rows import check_public


class Assembly(NamedTuple):
    """Everything that a run is made of, checked; nothing of it changes while the run is played."""

    experiment: Experiment  # every default filled in
    federation: Federation
    models: list[Model]
    programs: list[tuple[Stage, ...]]  # the method's stages, built for each model
    architecture: np.ndarray  # [N] index into models
    budget: Budget | None = None  # what differential privacy promises

    @property
    def setup(self) -> Setup:
        """What an engine is given."""
        return Setup(
            federation=self.federation,
            models=self.models,
            programs=self.programs,
            architecture=self.architecture,
            seed=self.experiment.seed,
            settings=_settings(self.experiment.engine, len(self.models)),
            rounds=sum(lengths(self.programs[0], self.experiment.schedule)),
            metric=self.experiment.schedule.metric,
        )


def gather(
    experiment: Experiment, data: Given = None, earlier: Federation | None = None
) -> Federation:
    """The data of an experiment; those that were made by hand are checked. `earlier` is what was
    made of the same data for another seed.
    """
    check_words(experiment)
    if isinstance(data, Federation) and experiment.data["name"].startswith(PYTHON):
        check_federation(data)
        data = with_select(data)
    federation = federation_of(anchored(experiment), data, earlier)
    return read_once(federation) if data is None else federation


def read_rows(experiment: Experiment) -> Own | None:
    """The data of an experiment, not dealt yet, if they are those of every seed."""
    check_words(experiment)
    return rows_of(anchored(experiment))


def assemble(
    experiment: Experiment,
    federation: Federation,
    networks: Networks = None,
    architecture: Sequence[int] | None = None,  # of each client; None: dealt in turn
    clients: Sequence[int] | None = None,  # whose rows are looked at; None: all
) -> Assembly:
    """Build the networks and the method's program, and refuse what this method cannot do here."""
    check_words(experiment)
    experiment, parts = anchored(experiment), experiment.schedule.parts
    if not any(len(rows) for part in parts for rows in part_of(federation, part)):
        raise BadInput(
            f"parts = {','.join(parts)}, but no client has such rows: nothing could be measured"
        )
    check_metric(experiment.schedule.metric, federation.target.task)
    models = models_of(experiment, federation, networks)
    build, options = METHODS[experiment.method], experiment.options
    programs = [stages(build(model, experiment.train, **options)) for model in models]
    dealt = np.arange(federation.clients) % len(models)
    if architecture is not None:
        dealt = np.array(architecture, dtype=np.int64)
        if not len(dealt) or dealt.min() < 0 or dealt.max() >= len(models):
            raise BadInput(
                f"the experiment deals networks that it does not name: it has {len(models)}"
            )
    if _refits(experiment, programs[0]):
        federation = refitted(federation)
    assembly = Assembly(
        experiment=resolved(experiment, federation, models),
        federation=federation,
        models=models,
        programs=programs,
        architecture=dealt,
    )
    check_method(assembly, clients)
    check_newcomers(assembly.experiment, federation)
    return _private(assembly) if experiment.guard.dp != "none" else assembly


def _refits(experiment: Experiment, stages: Sequence[Stage]) -> bool:
    """Whether a run trains on validation rows too: one that chooses nothing on them, and is no
    trial that is judged on them.
    """
    if not experiment.data.get("refit") or experiment.schedule.parts == ("validation",):
        return False
    return not any("validation" in stage.method.needs for stage in stages)


def _private(assembly: Assembly) -> Assembly:
    """The same run with its budget, and with private gradients where rows are to be hidden."""
    experiment, federation = assembly.experiment, assembly.federation
    check_private(
        experiment.guard, experiment.method, told(METHODS[experiment.method]), experiment.train
    )
    budget = budget_of(
        experiment.guard,
        assembly.programs[0],
        federation,
        facts(federation, assembly.models, assembly.architecture, experiment.schedule),
        experiment.schedule,
        lengths(assembly.programs[0], experiment.schedule),
        experiment.seed,
    )
    assert budget is not None
    if budget.unit == "client":
        return assembly._replace(budget=budget)
    model = PrivateModel(assembly.models[0], budget.clip, budget.noise)
    build = METHODS[experiment.method]
    program = stages(build(model, experiment.train, **experiment.options))
    return assembly._replace(budget=budget, programs=[program])


def with_data(
    assembly: Assembly, federation: Federation, clients: Sequence[int] | None = None
) -> Assembly:
    """The same run with other rows of the same clients, or of the first of them."""
    dealt = assembly.architecture[: federation.clients]
    if _refits(assembly.experiment, assembly.programs[0]):
        federation = refitted(federation)
    assembly = assembly._replace(federation=federation, architecture=dealt)
    check_method(assembly, clients)
    return assembly


def engine_of(setup: Setup, words: Words) -> Engine:
    """The engine that the words of `[engine]` name."""
    name = words["name"]
    own = {k: v for k, v in words.items() if k in options_of("engine", name)}
    return ENGINES[name](setup, words.get("threads", 0), **own)


def open_loop(
    assembly: Assembly,
    make: Callable[[Setup], Engine] | None = None,  # None: the engine that the words name
    answers: Answers | None = None,
) -> Loop:
    """The run at its beginning."""
    experiment, setup = assembly.experiment, assembly.setup
    engine = make(setup) if make else engine_of(setup, experiment.engine)
    words = experiment.schedule, experiment.seed
    return Loop(engine, assembly.federation, *words, answers, experiment.train, gate_of(assembly))


def gate_of(assembly: Assembly) -> Gate:
    """What every upload of this run passes on its way to the server."""
    guard, seed = assembly.experiment.guard, assembly.experiment.seed
    clients = assembly.federation.clients
    if assembly.budget:
        guard = guard._replace(dp_noise=assembly.budget.noise)
    return Gate(
        guard=guard,
        seed=seed,
        attackers=attackers_of(guard, clients, seed),
        expected=float(assembly.experiment.schedule.asked(clients)),
        promise=assembly.budget.facts() if assembly.budget else {},
    )


def _settings(words: Words, architectures: int) -> list[Settings]:
    """How each architecture runs: as was chosen once, else as is given."""
    try:
        chosen = read_all(words.get("chosen", ""))
    except ValueError:
        way = "leave it out, it is written by a run"
        raise BadInput(f"chosen = '{words['chosen']}': {way}") from None
    given = Settings(**{k: words[k] for k in Settings._fields if k in words})
    return chosen if len(chosen) == architectures else [given] * architectures


def check_method(assembly: Assembly, clients: Sequence[int] | None = None) -> None:
    """Refuse, before any work, what this method cannot do with this federation.

    Only `clients` must have the rows that the method needs; None: all.
    """
    federation, schedule = assembly.federation, assembly.experiment.schedule
    name = assembly.experiment.method
    said = told(METHODS[name]) if name in METHODS else Told()
    check_guard(assembly.experiment.guard, name, said, len(assembly.models), federation.clients)
    for stage in assembly.programs[0]:
        _check_stage(stage, assembly, clients)
    if schedule.rounds < 1:
        raise BadInput(f"rounds = {schedule.rounds}: a run has at least one round")
    if schedule.sample <= 0 or schedule.sample > federation.clients:
        raise BadInput(
            f"sample = {schedule.sample:g}: give a share in (0, 1] or a count up to the "
            f"{federation.clients} clients"
        )
    if not 0 <= schedule.drop < 1:
        raise BadInput(f"drop = {schedule.drop:g}: give a chance in [0, 1)")
    if schedule.trains not in ("sampled", "all"):
        raise BadInput(f"trains = '{schedule.trains}': choose 'sampled' or 'all'")


def _check_stage(stage: Stage, assembly: Assembly, clients: Sequence[int] | None) -> None:
    federation, name = assembly.federation, assembly.experiment.method
    needs, method = stage.method.needs, stage.method
    who = range(federation.clients) if clients is None else clients
    lacking = [federation.names[i] for i in who if not len(federation.validation[i])]
    if "validation" in needs and lacking:
        why = "validation = 0 leaves none: raise --validation"
        if clients is not None:
            why = f"'{lacking[0]}' has none: raise validation in server.toml"
        raise BadInput(f"{name} chooses on validation data, and {why}")
    if "groups" in needs and len(set(np.asarray(federation.groups).tolist())) < 2:
        raise BadInput(
            f"{name} needs true groups: give --rotate or --permute, or a split that has them"
        )
    if len(assembly.models) > 1 and not method.mixed:
        raise BadInput(
            f"{name} needs one architecture for all clients, {len(assembly.models)} were given"
        )
    exchanges = [*method.round, *([method.personalize] if method.personalize else [])]
    for plan in [p.plan for exchange in exchanges for p in exchange.passes if p.plan]:
        if plan.part not in ("train", "validation", "public"):
            raise BadInput(f"{name} asks for the part '{plan.part}', out of a method's reach")
    check_public(name, method, federation)
