"""How a builder declares what it takes: options in its annotations, words of `[train]` here.

`@method()` checks both whenever the builder is called, from an experiment or from Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, NamedTuple, TypeVar, cast

from coterie.core.errors import BadInput, suggest_name
from coterie.core.method import Train
from coterie.core.model import Model
from coterie.core.options import coerce, declared_options
from coterie.core.task import Task, find_task

Builder = Callable[..., Any]  # (model, train, **options) -> Method, or its stages
B = TypeVar("B", bound=Builder)
Condition = tuple[str, Any]  # an option and the value it must have
UnusedSettings = Mapping[str, Condition | None]  # words of [train]; None: never used
# What a server makes of the uploads: only their mean ("mean"), a mean and more of each ("models"),
# something else ("other"); "nothing": there are none.
UploadUse = Literal["mean", "models", "other", "nothing"]
# How clients use their training rows in what they upload: only by `model.grad` ("gradients"), or
# in another way too.
RowUse = Literal["gradients", "other"]


class UploadDeclaration(NamedTuple):
    """What a method says of its uploads: robust averages and guarantees of privacy rest on it."""

    uploads: UploadUse = "other"
    rows: RowUse = "other"


class SupportedTasks(NamedTuple):
    """The tasks that a method learns, and why no other."""

    learn: Callable[[Task], bool]
    because: str  # goes on from the method's name: "distils class probabilities"


def method(
    when: str = "",
    without: tuple[str, ...] = (),
    only: Mapping[str, Condition] | None = None,
    name: str = "",
    uploads: UploadUse = "other",
    rows: RowUse = "other",
    tasks: SupportedTasks | None = None,
    former: Mapping[str, Any] | None = None,
) -> Callable[[B], B]:
    """A builder that refuses what it cannot use, under `name` (its own, if none is given).

    when: to use it, in a few words that lists show. without: words of `[train]` that the method
    does not use. only: words that it uses only if an option has a certain value, as in {"steps":
    ("l_base", 0)}. uploads, rows: see `Told`; they are said of each builder anew, since one that
    calls another may change what it sends. tasks: those it learns, if not all. former: options of
    earlier versions with the value that changed nothing, so that files of runs can be read.
    """

    def decorate(builder: B) -> B:
        label = name or builder.__name__.replace("_", "-")

        @wraps(builder)
        def build(model: Model, train: Train, *values: Any, **options: Any) -> Any:
            given = dict(zip(declared_options(builder), values, strict=False)) | options
            checked = check_options(label, builder, given)
            check_train(label, build, train, checked)
            check_task(label, build, model)
            return builder(model, train, **checked)

        vars(build)["unused"] = {**unused_of(builder), **dict.fromkeys(without), **(only or {})}
        vars(build)["when"] = when or when_of(builder)
        vars(build)["told"] = UploadDeclaration(uploads, rows)
        vars(build)["tasks"] = tasks or tasks_of(builder)
        vars(build)["former"] = former or {}
        return cast(B, build)

    return decorate


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
    """The words of `[train]` that a builder does not use, or only sometimes; {} for one that says
    nothing."""
    words: UnusedSettings = getattr(builder, "unused", {})
    return words


def declaration_of(builder: Builder) -> UploadDeclaration:
    """What a builder says of its uploads; nothing is taken for granted of one that says nothing."""
    said: UploadDeclaration = getattr(builder, "told", UploadDeclaration())
    return said


def check_options(name: str, builder: Builder, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as values of their declared types; unknown ones and those out of range are
    refused."""
    known, checked = declared_options(builder), {}
    for option, value in options.items():
        if option not in known:
            raise BadInput(
                f"{name} has no option '{option}'{suggest_name(option, known) if known else ''}"
            )
        kind, default = known[option]
        checked[option] = coerce(kind, value, f"{name}.{option}", default)
    return checked


def check_train(name: str, builder: Builder, train: Train, options: Mapping[str, Any]) -> None:
    """Refuse a word of `[train]` that would change nothing, unless it has its default."""
    for word, when in unused_of(builder).items():
        value = getattr(train, word)
        if value == Train._field_defaults[word]:
            continue
        if when is None:
            raise BadInput(
                f"{name} does not use {word} = {value}: leave out --{word}, or choose a method "
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
                f"{name} uses {word} = {value} only with {option} = {way}: leave out --{word}, or "
                f"give --{option} {way}"
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
    return method(when, uploads=declaration_of(base).uploads, rows=declaration_of(base).rows)(build)


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
