"""How a builder declares what it takes: options in its annotations, options of `[train]` here.

`@method()` checks both whenever the builder is called, from an experiment or from Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

from coterie.core.augmentation import read_augmentation
from coterie.core.errors import BadInput, suggest_name
from coterie.core.meanings import meanings_of
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.optimizers import optimizer_of
from coterie.core.option_names import FORMER_NAMES
from coterie.core.options import coerce, declared_options
from coterie.core.schedules import read_schedule
from coterie.core.server_optimizers import NONE, server_optimizer_of
from coterie.core.task import Task, find_task
from coterie.methods.kept_optimizer import keep_optimizers
from coterie.methods.server_optimizer import optimize_server

Builder = Callable[..., Any]  # (model, train, **options) -> Method, or its stages
B = TypeVar("B", bound=Builder)
SEVERAL_OPTIMIZERS = "its clients work in several exchanges, each with an optimizer of its own"
NO_MEAN = "its server does not go on with the mean of all models"
# Words of [train] that belong to an optimizer: a method that takes plain steps has no use for them.
OPTIMIZER_SETTINGS = ("optimizer", "nesterov", "clip_norm", "keep_optimizer")
Condition = tuple[str, Any]  # an option and the value it must have
UnusedSettings = Mapping[str, Condition | None]  # options of [train]; None: never used
# What a server makes of the uploads: only their mean ("mean"), a mean and more of each ("models"),
# something else ("other"); "nothing": there are none.
UploadUse = Literal["mean", "models", "other", "nothing"]
# How clients use their training rows in what they upload: only by `model.grad` ("gradients"), or
# in another way too.
RowUse = Literal["gradients", "other"]
# How a server weighs uploads in its mean: as `[train] weighting` says, or all alike.
MeanWeights = Literal["train", "equal"]


class UploadDeclaration(NamedTuple):
    """What a method says of its uploads: robust averages and guarantees of privacy rest on it."""

    uploads: UploadUse = "other"
    rows: RowUse = "other"
    weights: MeanWeights = "train"  # of a mean


class SupportedTasks(NamedTuple):
    """The tasks that a method learns, and why no other."""

    learn: Callable[[Task], bool]
    because: str  # goes on from the method's name: "distils class probabilities"


def method(
    when: str = "",
    without: tuple[str, ...] = (),
    only: Mapping[str, Condition] | None = None,
    refuses: Mapping[str, str] | None = None,
    name: str = "",
    uploads: UploadUse = "other",
    rows: RowUse = "other",
    weights: MeanWeights = "train",
    tasks: SupportedTasks | None = None,
    former: Mapping[str, Any] | None = None,
) -> Callable[[B], B]:
    """A builder that refuses what it cannot use, under `name` (its own, if none is given).

    when: to use it, in a few words that lists show. without: options of `[train]` that the method
    does not use. only: options that it uses only if an option has a certain value, as in
    {"local_steps": ("l_base", 0)}. refuses: options that would change it into something else, and
    why, as a clause. uploads, rows, weights: see `UploadDeclaration`; they are said of each
    builder anew, since one that calls another may change what it sends. tasks: those it learns, if
    not all. former: options of earlier versions with the value that changed nothing, so that files
    of runs can be read.
    """

    def decorate(builder: B) -> B:
        label = name or builder.__name__.replace("_", "-")

        @wraps(builder)
        def build(model: Model, train: Train, *values: Any, **options: Any) -> Any:
            given = dict(zip(declared_options(builder), values, strict=False)) | options
            checked = check_options(label, builder, given)
            check_train(label, build, train, checked)
            check_task(label, build, model)
            # a builder that calls another one gets methods as they are, and this one is wrapped
            plain = train._replace(keep_optimizer=False)
            if train.server_optimizer != NONE:
                plain = plain._replace(server_optimizer=NONE, server_lr=0.0)
            return wrap(builder(model, plain, **checked), train, label)

        vars(build)["unused"] = {**unused_of(builder), **dict.fromkeys(without), **(only or {})}
        vars(build)["refused"] = {**_said_refused(builder), **(refuses or {})}
        vars(build)["when"] = when or when_of(builder)
        vars(build)["declaration"] = UploadDeclaration(uploads, rows, weights)
        vars(build)["tasks"] = tasks or tasks_of(builder)
        vars(build)["former"] = former or {}
        return cast(B, build)

    return decorate


def wrap(built: Any, train: Train, name: str) -> Any:
    """A method with what `[train]` puts around any: kept optimizers, an optimizer of the server."""
    optimizer = server_optimizer_of(train.server_optimizer)
    if optimizer is not None:
        built = optimize_server(built, optimizer, train.server_lr, name)
    return keep_optimizers(built, name) if train.keep_optimizer else built


def when_of(builder: Builder) -> str:
    """When to use a builder's method; "" of one that does not say."""
    return str(getattr(builder, "when", ""))


def was_nothing(builder: Builder | None, option: str, value: Any) -> bool:
    """Whether an option is of an earlier version, with the value that changed nothing."""
    former: Mapping[str, Any] = getattr(builder, "former", {})
    return option in former and value == former[option]


def tasks_of(builder: Builder) -> SupportedTasks | None:
    """The tasks that a builder's method learns; None: all."""
    known: SupportedTasks | None = getattr(builder, "tasks", None)
    return known


def check_task(name: str, builder: Builder, model: Model) -> None:
    """Refuse a task that the method does not learn."""
    tasks = tasks_of(builder)
    if tasks and not tasks.learn(find_task(model.task)):
        raise BadInput(
            f"{name} {tasks.because}, but the task of {model.name} is '{model.task}': use local, "
            "fedavg or ditto"
        )


def unused_of(builder: Builder) -> UnusedSettings:
    """The options of `[train]` that a builder does not use, or only sometimes; {} for one that says
    nothing."""
    settings: UnusedSettings = getattr(builder, "unused", {})
    return settings


def refused_of(builder: Builder) -> Mapping[str, str]:
    """The options of `[train]` that a builder refuses, and why."""
    averages = declaration_of(builder).uploads == "mean"
    never = () if averages else ("server_optimizer", "server_lr")
    return {**_said_refused(builder), **dict.fromkeys(never, NO_MEAN)}


def _said_refused(builder: Builder) -> Mapping[str, str]:
    settings: Mapping[str, str] = getattr(builder, "refused", {})
    return settings


def group_refusals(builder: Builder) -> dict[str, list[str]]:
    """The same by reason, as pages and lists tell it."""
    found: dict[str, list[str]] = {}
    for key, why in refused_of(builder).items():
        found.setdefault(why, []).append(key)
    return found


def declaration_of(builder: Builder) -> UploadDeclaration:
    """What a builder says of its uploads; nothing is taken for granted of one that says nothing."""
    said: UploadDeclaration = getattr(builder, "declaration", UploadDeclaration())
    return said


def check_options(name: str, builder: Builder, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as values of their declared types; unknown ones and those out of range are
    refused."""
    known, checked = declared_options(builder), {}
    for given, value in options.items():
        option = given if given in known else FORMER_NAMES["options"].get(given, given)
        if option not in known:
            raise BadInput(
                f"{name} has no option '{option}'{suggest_name(option, known) if known else ''}"
            )
        kind, default = known[option]
        checked[option] = coerce(kind, value, f"{name}.{option}", default)
    return checked


def check_train(name: str, builder: Builder, train: Train, options: Mapping[str, Any]) -> None:
    """Refuse an option of `[train]` that would change nothing, or the method into something else,
    unless it has its default."""
    changed = {
        key: "yes" if value is True else value
        for key, value in train._asdict().items()
        if value != Train._field_defaults[key]
    }
    for key, why in refused_of(builder).items():
        if key in changed:
            raise BadInput(
                f"{name} refuses {key} = {changed[key]}, since {why}: leave out "
                f"--{key.replace('_', '-')}, or choose another method, such as fedavg"
            )
    for key, when in unused_of(builder).items():
        if key not in changed:
            continue
        value, flag = changed[key], f"--{key.replace('_', '-')}"
        if when is None:
            raise BadInput(
                f"{name} does not use {key} = {value}: leave out {flag}, or choose a method "
                "that uses it, such as fedavg"
            )
        option, needed = when
        if options.get(option, declared_options(builder)[option][1]) != needed:
            way = (
                {True: "yes", False: "no"}.get(needed, needed)
                if isinstance(needed, bool)
                else needed
            )
            raise BadInput(
                f"{name} uses {key} = {value} only with {option} = {way}: leave out {flag}, or "
                f"give --{option} {way}"
            )
    optimizer_of(train)
    read_schedule(train.lr_schedule)
    read_augmentation(train.augment)
    own = "server_optimizer" in refused_of(builder)
    if server_optimizer_of(train.server_optimizer) is None and train.server_lr and not own:
        raise BadInput(
            f"server_lr = {train.server_lr:g} is that of a server optimizer: give "
            "--server-optimizer too, or leave it out"
        )


def variant(
    base: Builder,
    name: str,
    about: str,
    when: str = "",
    without: tuple[str, ...] = (),
    **fixed: Any,
) -> Builder:
    """A method that is another one with some options fixed; those in `without` keep their defaults.

    It has the other options of `base`, and stands in the same file.
    """
    # the variant is checked under its own name
    gone, inner = {*fixed, *without}, inspect.unwrap(base)

    def build(model: Model, train: Train, **options: Any) -> Any:
        return inner(model, train, **fixed, **options)

    parameters = inspect.signature(base).parameters
    _describe(build, base, {k: p for k, p in parameters.items() if k not in gone})
    build.__name__, build.__doc__ = name, about
    vars(build)["unused"], vars(build)["tasks"] = unused_of(base), tasks_of(base)
    vars(build)["refused"] = _said_refused(base)
    vars(build)["meanings"] = meanings_of(base)
    return method(when, **declaration_of(base)._asdict())(build)


def extends(base: Builder) -> Callable[[B], B]:
    """For a builder with `**options`: they are those of `base`, after its own."""

    def decorate(builder: B) -> B:
        own = {
            k: p
            for k, p in inspect.signature(builder).parameters.items()
            if p.kind is not p.VAR_KEYWORD
        }

        @wraps(builder)
        def build(model: Model, train: Train, **options: Any) -> Any:
            return builder(model, train, **options)

        _describe(
            build,
            builder,
            own | {k: p for k, p in inspect.signature(base).parameters.items() if k not in own},
            base,
        )
        vars(build)["unused"], vars(build)["tasks"] = unused_of(base), tasks_of(base)
        vars(build)["refused"] = _said_refused(base)
        vars(build)["meanings"] = meanings_of(base)
        return cast(B, build)

    return decorate


def _describe(
    build: Any,
    source: Builder,
    parameters: Mapping[str, inspect.Parameter],
    base: Builder | None = None,
) -> None:
    """Give a builder the signature, annotations and place of what it stands for."""
    hints = {k: kind for b in (base, source) if b for k, (kind, _) in declared_options(b).items()}
    build.__signature__ = inspect.Signature(list(parameters.values()))
    build.__annotations__ = {k: hints[k] for k in parameters if k in hints}
    build.__module__ = source.__module__
    vars(build).pop("__wrapped__", None)
