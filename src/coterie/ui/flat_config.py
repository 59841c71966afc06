"""The options of runs as a list compares them: flat, and told apart where they differ."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Flat = dict[str, Any]  # {"section.option": number, text, yes or no}
MAX_CHARACTERS = 200  # characters of a value
RESULT_NEUTRAL = ("engine.", "keep.")  # sections that change no result


def flatten_config(config: Mapping[str, Any]) -> Flat:
    """The options of a run's configuration, section by section."""
    found: Flat = {}
    for option, value in config.items():
        if isinstance(value, Mapping):
            found |= {f"{option}.{k}": _to_json_value(v) for k, v in value.items()}
        else:
            found[option] = _to_json_value(value)
    return found


def _to_json_value(value: Any) -> Any:
    """A value that JSON and a reader know."""
    if isinstance(value, list):
        return ", ".join(str(_to_json_value(item)) for item in value)[:MAX_CHARACTERS]
    if isinstance(value, bool | int | float) and abs(value) < 2**53 and math.isfinite(value):
        return value
    return str(value).encode("utf-8", "replace").decode()[:MAX_CHARACTERS]


def group_of(settings: Flat) -> str:
    """A sign that runs share which differ in nothing but the seed."""
    shown = {k: v for k, v in settings.items() if k != "seed" and not k.startswith(RESULT_NEUTRAL)}
    text = json.dumps(shown, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=6).hexdigest()


def find_differing(runs: Sequence[Flat]) -> list[str]:
    """The options that not all of these runs have with the same value."""
    every = dict.fromkeys(option for settings in runs for option in settings)
    return sorted(
        option
        for option in every
        if len({_comparable_value(settings.get(option)) for settings in runs}) > 1
    )


def _comparable_value(value: Any) -> tuple[str, Any]:
    """A value beside others: yes is not 1, but 1 is 1.0."""
    return "yes or no" if isinstance(value, bool) else "", value
