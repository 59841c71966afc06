"""Values: from text, TOML or Python to the type that is wanted, and back to TOML."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from coterie.core.errors import BadInput


def coerce(kind: Any, value: Any, word: str, default: Any = None) -> Any:
    """A value of the wanted type from text, TOML or Python; one clear line where it is none."""
    try:
        return _coerced(kind, value)
    except (ValueError, TypeError, OverflowError):
        given = "has no value" if value is True or value is None else f"= {value!r}"
        such = (
            f", such as {_shown(default)}"
            if default not in (None, "", ()) and kind is not bool and get_origin(kind) is not Literal
            else ""
        )
        raise BadInput(f"{word} {given}: give {_word_for(kind)}{such}") from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _coerced(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _either(inner, value)
    if origin is Literal:
        value = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        if value not in inner:
            raise ValueError
        return value
    if origin in (tuple, list, Sequence):
        items = [i.strip() for i in value.split(",") if i.strip()] if isinstance(value, str) else list(value)
        return (list if origin is list else tuple)(_coerced(inner[0], item) for item in items)
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
        if (number := float(value)) != number:  # NaN is never meant
            raise ValueError
        return number
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _either(kinds: tuple[Any, ...], value: Any) -> Any:
    if type(None) in kinds and (value is None or value == "" or (value == "none" and str not in kinds)):
        return None  # "none" is a word where words are meant, as in scale = "none"
    for kind in sorted(kinds, key=lambda k: k is str):
        if kind is not type(None):
            try:
                return _coerced(kind, value)
            except (ValueError, TypeError, OverflowError):
                pass
    raise ValueError


def _word_for(kind: Any) -> str:
    """What a value of this type is called."""
    if get_origin(kind) is Literal:
        return f"{', '.join(get_args(kind)[:-1])} or {get_args(kind)[-1]}"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join("none" if k is type(None) else _word_for(k) for k in get_args(kind))
    if get_origin(kind) in (tuple, list, Sequence):
        return f"{_word_for(get_args(kind)[0]).removeprefix('a ')}s separated by commas"
    return {int: "a whole number", float: "a number", bool: "yes or no", str: "a word"}.get(kind, str(kind))


def to_toml(words: Mapping[str, Any], place: str = "") -> str:
    """The words as TOML, tables within tables too; what is None is left out, and read as None again."""
    tables = {k: v for k, v in words.items() if isinstance(v, Mapping)}
    lines = [f"{_key(k)} = {_literal(v)}" for k, v in words.items() if k not in tables and v is not None]
    if place and (lines or not tables):
        lines.insert(0, f"[{place}]")
    parts = ["".join(f"{line}\n" for line in lines)]
    parts += [to_toml(table, f"{place}.{_key(k)}" if place else _key(k)) for k, table in tables.items()]
    return "\n".join(part for part in parts if part)


def _key(word: str) -> str:
    return word if re.fullmatch("[A-Za-z0-9_-]+", word) else _literal(word)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON's escapes are TOML's
