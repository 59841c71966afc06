"""Options as TOML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def to_toml(settings: Mapping[str, Any], place: str = "") -> str:
    """The options as TOML, tables within tables too; what is None is left out, and read as None
    again.
    """
    tables = {k: v for k, v in settings.items() if isinstance(v, Mapping)}
    lines = [
        f"{_format_key(k)} = {_format_literal(v)}"
        for k, v in settings.items()
        if k not in tables and v is not None
    ]
    if place and (lines or not tables):
        lines.insert(0, f"[{place}]")
    parts = ["".join(f"{line}\n" for line in lines)]
    parts += [
        to_toml(table, f"{place}.{_format_key(k)}" if place else _format_key(k))
        for k, table in tables.items()
    ]
    return "\n".join(part for part in parts if part)


def _format_key(option: str) -> str:
    return option if re.fullmatch("[A-Za-z0-9_-]+", option) else _format_literal(option)


def _format_literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_format_literal(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace(
        "\x7f", "\\u007f"
    )  # JSON's escapes are TOML's
