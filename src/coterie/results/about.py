"""What run.json must hold: checked in one place, so that no reader meets a damaged one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.files import digest_text
from coterie.data.federation import PARTS

KINDS: dict[str, type] = {
    "status": str,
    "coterie": str,
    "data": str,
    "clients": list,
    "rows": dict,
    "groups": list,
    "classes": int,
    "models": list,
}
OPTIONS = "options"  # what a resumed run must have as it was begun
CHECKSUMS = "files"  # {file: checksum} of what is not listed with the models
CHECKSUM = "checksum"  # of the entries that do
DECIDES = ("clients", "classes", "labels", "task", "models", "architecture", "input_shape")


def checksum_about(known: Mapping[str, Any]) -> str:
    """A checksum of all that run.json says of how rows become answers."""
    return digest_text(json.dumps([known.get(key) for key in (*DECIDES, CHECKSUMS)]))


def partition_of(known: Mapping[str, Any]) -> str:
    """What is equal for runs whose clients have the same rows, whichever of them they test; of a
    run that does not say, for runs with the same parts.
    """
    return str(known.get("partition") or known["data"])


def options_of(known: Mapping[str, Any]) -> dict[str, Any]:
    """The options that run.json or a checkpoint holds; until 0.2 they were called words."""
    return dict(known.get(OPTIONS) or known.get("words") or {})


def check_about(known: Any, path: Path) -> dict[str, Any]:
    """What a run says of itself, if it is whole."""
    if not isinstance(known, dict):
        raise BadInput(f"{path} is damaged: restore it from a copy, or run again")
    lacks = [option for option in KINDS if option not in known]
    if lacks:
        raise BadInput(f"{path} lacks {', '.join(lacks)}: it is damaged or of another version")
    rows = known["rows"]
    if isinstance(rows, dict) and isinstance(known["clients"], list) and "select" not in rows:
        rows["select"] = [0] * len(known["clients"])  # a run from before such rows were kept
    wrong = _find_wrong(known)
    if wrong:
        raise BadInput(f"{path} is damaged ({wrong}): restore it from a copy, or run again")
    if known.get(CHECKSUM, "") != checksum_about(known) and CHECKSUM in known:
        raise BadInput(
            f"{path} is damaged ({', '.join(DECIDES)} or {CHECKSUMS} is not as it was written): "
            "restore it from a copy, or run again"
        )
    return known


def _find_wrong(known: dict[str, Any]) -> str:
    """The first option whose value cannot be what a run wrote; "" where there is none."""
    for option, kind in KINDS.items():
        if not isinstance(known[option], kind) or isinstance(known[option], bool):
            return option
    clients = len(known["clients"])
    if not all(isinstance(name, str) for name in known["clients"]):
        return "clients"
    if set(known["rows"]) != set(PARTS):
        return "rows"
    for option, numbers in (*known["rows"].items(), ("groups", known["groups"])):
        if not isinstance(numbers, list) or len(numbers) != clients or not _are_counts(numbers):
            return f"{option} of its clients"
    models = known["models"]
    if not models or not all(
        isinstance(m, dict)
        and isinstance(m.get("name"), str)
        and _are_counts([m.get("parameters")])
        for m in models
    ):
        return "models"
    return "" if 0 <= known["classes"] < 2**31 else "classes"


def _are_counts(numbers: list[Any]) -> bool:
    return all(type(n) is int and 0 <= n < 2**53 for n in numbers)
