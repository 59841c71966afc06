"""A run put together: data, networks, the method's program, and the engine that plays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coterie.analysis.scores import check_metric, find_score
from coterie.core.augmentation import read_augmentation
from coterie.core.dp_sgd import PrivateModel
from coterie.core.errors import BadInput
from coterie.core.method import Stage, stages_of
from coterie.core.model import Model
from coterie.core.task import find_task
from coterie.data.client_rows import ClientRows
from coterie.data.federation import (
    Federation,
    cache_digest,
    part_of,
    train_on_validation,
    with_select,
)
from coterie.data.messages import log
from coterie.data.read.catalog import DATASETS
from coterie.data.read.file_rows import UserData
from coterie.engines.base import Engine, EngineSetup
from coterie.engines.registry import ENGINES
from coterie.engines.settings import ExecutionSettings, read_settings
from coterie.experiment.build import (
    Given,
    Networks,
    anchor_paths,
    check_experiment,
    check_federation,
    federation_of,
    fill_defaults,
    models_of,
    read_shared_data,
)
from coterie.experiment.config import PYTHON, Experiment, Options, options_of
from coterie.methods.declare import UploadDeclaration, declaration_of
from coterie.methods.registry import METHODS
from coterie.running.loop import Answers, Loop, facts_of, stage_lengths_of
from coterie.running.newcomer_metrics import check_newcomers
from coterie.running.privacy_budget import Budget, budget_of, check_private
from coterie.running.public_check import check_public
from coterie.running.upload_guard import UploadGuard, attackers_of, check_guard

COMMON = 0.8  # share of training rows of one class from which accuracy says little
ENOUGH = 6  # training rows of rare classes from which there is likely one among select rows
TIED = 0.5  # share of training rows of one number from which it is the median
MIXED = 0.5  # share of such clients from which AUC, which needs one, is known of enough of them


class Assembly(NamedTuple):
    """Everything that a run is made of, checked; nothing of it changes while the run is played."""

    experiment: Experiment  # every default filled in
    federation: Federation
    models: list[Model]
    programs: list[tuple[Stage, ...]]  # the method's stages, built for each model
    architecture: np.ndarray  # [N] index into models
    budget: Budget | None = None  # what differential privacy promises

    @property
    def setup(self) -> EngineSetup:
        """What an engine is given."""
        settings, schedule = self.experiment.engine, self.experiment.schedule
        lengths, clients = stage_lengths_of(self.programs[0], schedule), self.federation.clients
        active = clients if schedule.trains == "all" else schedule.sample_size(clients)
        return EngineSetup(
            federation=self.federation,
            models=self.models,
            programs=self.programs,
            architecture=self.architecture,
            seed=self.experiment.seed,
            settings=_settings_of(settings, len(self.models)),
            rounds=sum(lengths),
            metric=schedule.metric,
            lengths=lengths,
            share=active / clients,
            strict=settings.get("compile") == "yes",
            evaluations=sum(length // schedule.every + 1 for length in lengths),
        )


def load_federation(
    experiment: Experiment, data: Given = None, earlier: Federation | None = None
) -> Federation:
    """The data of an experiment; those that were made by hand are checked. `earlier` is what was
    made of the same data for another seed.
    """
    check_experiment(experiment)
    if isinstance(data, Federation) and experiment.dataset["name"].startswith(PYTHON):
        check_federation(data)
        data = with_select(data)
    federation = federation_of(anchor_paths(experiment), data, earlier)
    return cache_digest(federation) if data is None else federation


def read_seed_independent(experiment: Experiment) -> UserData | None:
    """The data of an experiment, not partitioned yet, if they are those of every seed."""
    check_experiment(experiment)
    return read_shared_data(anchor_paths(experiment))


def assemble(
    experiment: Experiment,
    federation: Federation,
    networks: Networks = None,
    architecture: Sequence[int] | None = None,  # of each client; None: assigned in turn
    clients: Sequence[int] | None = None,  # whose rows are looked at; None: all
) -> Assembly:
    """Build the networks and the method's program, and refuse what this method cannot do here."""
    check_experiment(experiment)
    experiment, parts = anchor_paths(experiment), experiment.schedule.parts
    if not any(len(rows) for part in parts for rows in part_of(federation, part)):
        raise BadInput(
            f"parts = {','.join(parts)}, but no client has such rows: nothing could be measured; "
            "give --parts train, or leave rows with --validation or --test"
        )
    check_metric(experiment.schedule.metric, federation.target.task)
    if clients is None:  # real sites and newcomers are judged as the run says
        experiment = _choose_measure(experiment, federation)
    models = models_of(experiment, federation, networks)
    build, options = METHODS[experiment.method], experiment.options
    train = experiment.train.over(experiment.schedule.rounds)
    bound = bounded_rate_of(experiment, federation)
    programs = [stages_of(build(model.with_bound(bound), train, **options)) for model in models]
    dealt = np.arange(federation.clients) % len(models)
    if architecture is not None:
        dealt = np.array(architecture, dtype=np.int64)
        if not len(dealt) or dealt.min() < 0 or dealt.max() >= len(models):
            raise BadInput(
                f"the experiment assigns networks that it does not name: it has {len(models)}"
            )
    if _trains_on_validation(experiment, programs[0]):
        federation = train_on_validation(federation)
    assembly = Assembly(
        experiment=fill_defaults(experiment, federation, models),
        federation=federation,
        models=models,
        programs=programs,
        architecture=dealt,
    )
    check_method(assembly, clients)
    check_newcomers(assembly.experiment, federation)
    return _add_privacy(assembly) if experiment.guard.dp != "none" else assembly


def _choose_measure(experiment: Experiment, federation: Federation) -> Experiment:
    """The experiment judged by another measure than its task's usual one where that would praise
    whoever always says the most frequent value, on a table of one's own and if nobody said by what.
    """
    known, train = find_task(federation.target.task), ClientRows.of(federation.train)
    if experiment.schedule.metric or not len(federation.y):
        return experiment
    if not is_own_table(experiment, federation):
        return experiment
    y = federation.y.numpy()[train.concatenate()]
    metric = ""
    if known.has_classes and known.is_plain:
        metric = _measure_rare_classes(federation, y, train)
    elif known.measure == "mae":
        metric = _measure_tied_numbers(federation, y)
    if not metric:
        return experiment
    return replace(experiment, schedule=experiment.schedule._replace(metric=metric))


def _measure_rare_classes(federation: Federation, y: np.ndarray, train: ClientRows) -> str:
    """AUC, or balanced accuracy, where nearly all training rows have one class; else ""."""
    counts = np.bincount(y, minlength=federation.classes)
    share = counts.max() / counts.sum()
    if share <= COMMON:
        return ""
    rare = np.bincount(train.owners(), weights=y != counts.argmax(), minlength=len(train))
    mixed = np.minimum(rare, train.counts - rare) >= ENOUGH
    metric = "auc" if mixed.mean() >= MIXED else "balanced_accuracy"
    name = federation.labels[int(counts.argmax())] if federation.labels else counts.argmax()
    log(
        f"{federation.name}: {100 * share:.1f} % of training rows are '{name}', so "
        f"{find_score(metric).label} decides; --metric accuracy for another, --class-weights "
        "balanced to learn rare classes better"
    )
    return metric


def _measure_tied_numbers(federation: Federation, y: np.ndarray) -> str:
    """RMSE where most training rows have one number, which the least absolute error says of any
    row, while a loss of means is trained; else "".
    """
    values, counts = np.unique(y, return_counts=True)
    share, target = counts.max() / counts.sum(), federation.target
    if share <= TIED:
        return ""
    centre, unit = find_task(target.task).find_units(target.centre, target.spread)
    log(
        f"{federation.name}: {100 * share:.1f} % of training rows are "
        f"{values[counts.argmax()] * unit + centre:.4g}, so RMSE decides, as always saying that "
        "has the least absolute error; --metric mae for another"
    )
    return "rmse"


def bounded_rate_of(experiment: Experiment, federation: Federation) -> float:
    """The learning rate whose steps are bounded, momentum included; 0: they are not."""
    train = experiment.train
    if train.bound_steps == "yes" and (why := _unbounded(experiment, federation)):
        raise BadInput(f"bound_steps = yes, but {why}: leave it out")
    usual = is_own_table(experiment, federation)
    wanted = train.bound_steps == "yes" or (train.bound_steps == "auto" and usual)
    if not wanted or _unbounded(experiment, federation):
        return 0.0
    return train.lr / (1 - train.momentum)


def is_own_table(experiment: Experiment, federation: Federation) -> bool:
    """Whether rows are lists of numbers that somebody brought: no registered data set, no text."""
    own = federation.preparation is not None and experiment.dataset["name"] not in DATASETS
    return own and len(federation.input_shape) == 1 and not federation.words


def _unbounded(experiment: Experiment, federation: Federation) -> str:
    """Why steps cannot be bounded; "" where they can."""
    optimizer, guard = experiment.train.optimizer, experiment.guard
    if optimizer != "sgd":
        return f"optimizer = {optimizer} takes steps whose length no gradient decides"
    if guard.dp == "example":
        return "dp = example clips the gradient of every row already"
    if federation.target.loss:
        return f"nobody knows how low loss = {federation.target.loss} may be"
    return ""


def _trains_on_validation(experiment: Experiment, stages: Sequence[Stage]) -> bool:
    """Whether a run trains on validation rows too: one that chooses nothing on them, and is no
    trial that is judged on them.
    """
    if not experiment.dataset.get("refit") or experiment.schedule.parts == ("validation",):
        return False
    return not any("validation" in stage.method.needs for stage in stages)


def _add_privacy(assembly: Assembly) -> Assembly:
    """The same run with its budget, and with private gradients where rows are to be hidden."""
    experiment, federation = assembly.experiment, assembly.federation
    check_private(
        experiment.guard,
        experiment.method,
        declaration_of(METHODS[experiment.method]),
        experiment.train,
    )
    budget = budget_of(
        experiment.guard,
        assembly.programs[0],
        federation,
        facts_of(federation, assembly.models, assembly.architecture, experiment.schedule),
        experiment.schedule,
        stage_lengths_of(assembly.programs[0], experiment.schedule),
        experiment.seed,
    )
    assert budget is not None
    if budget.unit == "client":
        return assembly._replace(budget=budget)
    model = PrivateModel(assembly.models[0], budget.clip, budget.noise)
    build = METHODS[experiment.method]
    train = experiment.train.over(experiment.schedule.rounds)
    program = stages_of(build(model, train, **experiment.options))
    return assembly._replace(budget=budget, programs=[program])


def with_data(
    assembly: Assembly, federation: Federation, clients: Sequence[int] | None = None
) -> Assembly:
    """The same run with other rows of the same clients, or of the first of them."""
    dealt = assembly.architecture[: federation.clients]
    if _trains_on_validation(assembly.experiment, assembly.programs[0]):
        federation = train_on_validation(federation)
    assembly = assembly._replace(federation=federation, architecture=dealt)
    check_method(assembly, clients)
    return assembly


def engine_of(setup: EngineSetup, settings: Options) -> Engine:
    """The engine that the options of `[engine]` name."""
    name = settings["name"]
    own = {k: v for k, v in settings.items() if k in options_of("engine", name)}
    return ENGINES[name](setup, settings.get("threads", 0), **own)


def open_loop(
    assembly: Assembly,
    make: Callable[[EngineSetup], Engine] | None = None,  # None: the engine that the options name
    answers: Answers | None = None,
) -> Loop:
    """The run at its beginning."""
    experiment, setup = assembly.experiment, assembly.setup
    engine = make(setup) if make else engine_of(setup, experiment.engine)
    settings = experiment.schedule, experiment.seed
    return Loop(
        engine, assembly.federation, *settings, answers, experiment.train, gate_of(assembly)
    )


def gate_of(assembly: Assembly) -> UploadGuard:
    """What every upload of this run passes on its way to the server."""
    guard, seed = assembly.experiment.guard, assembly.experiment.seed
    clients = assembly.federation.clients
    if assembly.budget:
        guard = guard._replace(dp_noise=assembly.budget.noise)
    return UploadGuard(
        guard=guard,
        seed=seed,
        attackers=attackers_of(guard, clients, seed),
        expected=float(assembly.experiment.schedule.sample_size(clients)),
        promise=assembly.budget.facts() if assembly.budget else {},
    )


def _settings_of(settings: Options, architectures: int) -> list[ExecutionSettings]:
    """How each architecture runs: as was chosen once, else as is given."""
    try:
        chosen = read_settings(settings.get("chosen", ""))
    except ValueError:
        way = "leave it out, it is written by a run"
        raise BadInput(f"chosen = '{settings['chosen']}': {way}") from None
    given = ExecutionSettings(
        **{k: settings[k] for k in ExecutionSettings._fields if k in settings}
    )
    return chosen if len(chosen) == architectures else [given] * architectures


def check_method(assembly: Assembly, clients: Sequence[int] | None = None) -> None:
    """Refuse, before any work, what this method cannot do with this federation.

    Only `clients` must have the rows that the method needs; None: all.
    """
    federation, schedule = assembly.federation, assembly.experiment.schedule
    name = assembly.experiment.method
    said = declaration_of(METHODS[name]) if name in METHODS else UploadDeclaration()
    check_guard(assembly.experiment.guard, name, said, len(assembly.models), federation.clients)
    for stage in assembly.programs[0]:
        _check_stage(stage, assembly, clients)
    _check_augmentation(assembly)
    if schedule.rounds < 1:
        raise BadInput(f"rounds = {schedule.rounds}: a run has at least one round")
    if schedule.participation <= 0 or schedule.participation > federation.clients:
        raise BadInput(
            f"participation = {schedule.participation:g}: give a share in (0, 1] or a count up "
            f"to the {federation.clients} clients"
        )
    if not 0 <= schedule.dropout_clients < 1:
        raise BadInput(f"dropout_clients = {schedule.dropout_clients:g}: give a chance in [0, 1)")
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


def _check_augmentation(assembly: Assembly) -> None:
    """Refuse to augment what is no image, or what the method never reads so."""
    federation, name = assembly.federation, assembly.experiment.method
    trips = [trip for stage in assembly.programs[0] for trip in stage.method.round]
    plans = [p.plan for trip in trips for p in trip.passes if p.plan]
    found = {plan.augment for plan in plans if plan.part == "train" and plan.augment}
    for spec in found:
        known = read_augmentation(spec)
        if known is not None:
            known.check(federation.input_shape, federation.name)
    wanted = assembly.experiment.train.augment
    if not found and read_augmentation(wanted) is not None:
        raise BadInput(
            f"augment = {wanted} changes nothing in {name}, whose passes are not those of "
            "`train.plan`: leave out --augment"
        )
