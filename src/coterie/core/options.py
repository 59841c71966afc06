"""Values of options: how a type, a choice and a range are declared, read and checked, in this one
place.

An option says all of it in its annotation, as in `lam: NonNegative = 1.0` or
`soft: Literal["kl", "ce"] = "kl"`; whatever comes from text, TOML or Python passes through
`coerce`.
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from coterie.core.errors import BadInput, format_value, suggest_name

DeclaredOptions = dict[str, tuple[Any, Any]]  # {option: (type, default)}


class Range(NamedTuple):
    """The numbers that an option takes; an open end is not one of them."""

    low: float
    high: float
    low_open: bool = False
    high_open: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number is inside; NaN never is."""
        above = value > self.low if self.low_open else value >= self.low
        return above and (value < self.high if self.high_open else value <= self.high)

    def __str__(self) -> str:
        low, high = f"{self.low:,.12g}", f"{self.high:,.12g}"
        if self.low_open:
            return (
                f"above {low} and below {high}" if self.high_open else f"above {low}, up to {high}"
            )
        return f"from {low} to below {high}" if self.high_open else f"from {low} to {high}"


class OneOf(NamedTuple):
    """The names that an option takes, where a registry knows them."""

    names: Callable[[], Sequence[str]]
    also: Callable[[object], bool] = lambda value: False  # whether it is another of its words


MAX_COUNT = 1_000_000  # more of anything than a run can count through
PositiveInt = Annotated[int, Range(1, MAX_COUNT)]
NonNegativeInt = Annotated[int, Range(0, MAX_COUNT)]
Positive = Annotated[float, Range(0, 1e6, low_open=True)]
# of training; one that is too large diverges, which is reported when it happens
LearningRate = Annotated[float, Range(0, 1e30, low_open=True)]
NonNegative = Annotated[float, Range(0, 1e6)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, low_open=True)]
InnerShare = Annotated[float, Range(0, 1, low_open=True, high_open=True)]
BelowOne = Annotated[float, Range(0, 1, high_open=True)]
Number = Annotated[float, Range(-1e6, 1e6)]
Seed = Annotated[int, Range(0, 2**32 - 1)]


@cache
def declared_options(function: Callable[..., Any]) -> DeclaredOptions:
    """Options of a builder: those of its parameters that have a default, the others are the
    caller's.

    A parameter without an annotation has the type of its default.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.items()
    return {
        name: (hints.get(name, type(p.default)), p.default)
        for name, p in parameters
        if p.default is not p.empty
    }


def coerce(kind: Any, value: Any, key: str, default: Any = None) -> Any:
    """A value of the wanted type and range from text, TOML or Python; one clear line if it is
    none.
    """
    try:
        return _coerce(kind, value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        given = "has no value" if value is True or value is None else f"= {_format_given(value)}"
        such = (
            f", such as {_format_default(default)}"
            if default not in (None, "", ()) and kind is not bool and not choices_of(kind)
            else ""
        )
        raise BadInput(f"{key} {given}: give {describe_type(kind)}{such}") from None


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """A name and its options, written as in "adam:beta1=0.8" or "a:b=1:c=2"."""
    name, *pairs = (piece.strip() for piece in re.split(r"[:,]", spec))
    found = (pair.partition("=") for pair in pairs if pair)
    return name, {key.strip(): value.strip() for key, _, value in found}


def read_spec(
    spec: str, known: Mapping[str, Callable[..., Any]], key: str
) -> tuple[str, dict[str, Any]]:
    """The name of one of several functions and its options, as values of their declared types."""
    name, given = split_spec(spec)
    if name not in known:
        raise BadInput(f"{key} = {format_value(spec)}: unknown{suggest_name(name, known)}")
    declared, options = declared_options(known[name]), {}
    for option, value in given.items():
        if option not in declared:
            way = suggest_name(option, declared) if declared else ", which takes none"
            raise BadInput(f"{key} = {format_value(spec)}: no option '{option}' of {name}{way}")
        kind, default = declared[option]
        options[option] = coerce(kind, value, f"{key}, {option} of {name},", default)
    return name, options


def check_table(table: Any, place: str = "") -> Any:
    """A table of values (a NamedTuple with annotations), each of its declared type and range."""
    hints = get_type_hints(type(table), include_extras=True)
    defaults = type(table)._field_defaults
    return type(table)(
        **{
            key: coerce(hints[key], value, f"{place}{key}", defaults.get(key))
            for key, value in table._asdict().items()
        }
    )


def _format_given(value: Any) -> str:
    """A value as it was given; a number that came as text without quotes."""
    if isinstance(value, str):
        try:
            if math.isfinite(float(value)) and len(value) < 40:
                return value.strip()
        except ValueError:
            pass
    return format_value(value)


def _format_default(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
    return str(value)


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The values of an option that takes a few; () of one that takes numbers or text."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next((tuple(limit.names()) for limit in inner if isinstance(limit, OneOf)), ())
    return inner if origin is Literal else ()


def _coerce(kind: Any, value: Any) -> Any:
    origin, inner, choices = get_origin(kind), get_args(kind), choices_of(kind)
    if choices:
        value = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        others = (limit.also for limit in inner if isinstance(limit, OneOf))
        if value not in choices and not any(also(value) for also in others):
            raise ValueError
        return value
    if origin is Annotated:
        found = _coerce(inner[0], value)
        if not all(limit.holds(found) for limit in inner[1:] if isinstance(limit, Range)):
            raise ValueError
        return found
    if origin in (Union, types.UnionType):
        return _coerce_union(inner, value)
    if origin in (tuple, list, Sequence):
        return (list if origin is list else tuple)(
            _coerce(inner[0], i) for i in _split_items(inner[0], value)
        )
    if kind is bool:
        known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in known:
            raise ValueError
        return known[str(value).lower()]
    if isinstance(value, bool | Mapping) or value is None:
        raise TypeError
    if kind is int:
        if isinstance(value, float) and value != int(value):
            raise ValueError
        return int(value)
    if kind is float:
        if not math.isfinite(number := float(value)):  # NaN and infinity are never meant
            raise ValueError
        return number
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, Iterable) and not isinstance(value, str):  # an array, a column, bytes
        raise TypeError
    return str(value)


def _split_items(kind: Any, value: Any) -> list[Any]:
    """The items of a list, of a text with commas, or of the one number that is given for a list of
    numbers."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and _strip_range(kind) in (int, float)
    ):
        return [value]
    if isinstance(value, Mapping):
        raise TypeError
    return list(value)


def _strip_range(kind: Any) -> Any:
    """The type without its range."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _coerce_union(kinds: tuple[Any, ...], value: Any) -> Any:
    if type(None) in kinds and (
        value is None or value == "" or (value == "none" and str not in kinds)
    ):
        return None  # "none" is a word where words are meant, as in scale = "none"
    for kind in sorted(kinds, key=lambda k: k is str):
        if kind is not type(None):
            try:
                return _coerce(kind, value)
            except (ValueError, TypeError, OverflowError):
                pass
    raise ValueError


def describe_type(kind: Any) -> str:
    """What a value of this type is called, with its choices or its range."""
    origin, inner, choices = get_origin(kind), get_args(kind), choices_of(kind)
    if choices:
        return (
            f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
            if choices[1:]
            else str(choices[0])
        )
    if origin is Annotated:
        return " ".join(
            [
                describe_type(inner[0]),
                *(str(limit) for limit in inner[1:] if isinstance(limit, Range)),
            ]
        )
    if origin in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else describe_type(k) for k in inner)
    if origin in (tuple, list, Sequence):
        if choices_of(inner[0]):
            return f"{describe_type(inner[0])}, or several of them separated by commas"
        limits = get_args(inner[0])[1:] if get_origin(inner[0]) is Annotated else ()
        many = f"{describe_type(_strip_range(inner[0])).removeprefix('a ')}s"
        return ", each ".join([f"{many} separated by commas", *map(str, limits)])
    return {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}.get(
        kind, str(kind)
    )
