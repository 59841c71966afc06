"""The words that shape a result, by which a run that goes on is held to those it began with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.errors import BadInput
from coterie.core.guard import Guard
from coterie.data.choices import Choices
from coterie.experiment.config import Experiment, options_of
from coterie.experiment.schedule import Schedule

# What is kept on disk, where the data lie and which processes do the work change no result; the
# data themselves have a checksum.
SHAPELESS = ("keep", "data.data_dir")
# of [engine], the words that do; another device is another processor
ENGINE = ("path", "width", "compile", "chosen", "precision")
MAY_CHANGE = ("train", "schedule", "options")  # sections that a branch may change
Shape = dict[str, Any]  # {word: value}
# words that older runs do not have, with the values that leave everything as it was
YOUNGER: dict[str, Mapping[str, Any]] = {
    "guard": Guard._field_defaults,
    "data": {"newcomers": Choices._field_defaults["newcomers"], "rows_each": 0},
    "engine": {"precision": "float32"},
    "schedule": {w: Schedule._field_defaults[w] for w in ("newcomer_rounds", "few_shot")},
}


def shape_of(experiment: Experiment) -> Shape:
    """Every word of an experiment that shapes its result, by its full name."""
    words = experiment.words()
    flat = {"method": words.pop("method"), "seed": words.pop("seed")}
    for section, table in words.items():
        flat |= {
            f"{section}.{word}": _plain(value)
            for word, value in table.items()
            # what is younger than some runs says nothing where it is not set
            if not (section in YOUNGER and value == YOUNGER[section].get(word, ...))
        }
    return {w: v for w, v in flat.items() if v is not None and _shapes(w)}


def _shapes(word: str) -> bool:
    section, _, name = word.partition(".")
    if section == "engine":
        return name in ENGINE
    return word not in SHAPELESS and section not in SHAPELESS


def _plain(value: Any) -> Any:
    """As JSON has it; no text and no items are the same to whoever reads a file, and so are a text
    and a list of it alone.
    """
    if isinstance(value, tuple | list) and len(value) < 2:
        return _plain(value[0]) if value else ""
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def changes(began: Mapping[str, Any], now: Shape) -> dict[str, tuple[Any, Any]]:
    """{word: (value when the run began, value now)} of the words that are not the same.

    What was still open when the run began, and was then chosen for it, has not changed.
    """
    found = {}
    for word in [*began, *(w for w in now if w not in began)]:
        before, after = _plain(began.get(word)), _plain(now.get(word))
        if before != after and not (word == "engine.chosen" and not before):
            found[word] = (before, after)
    return found


def check_unchanged(
    began: Mapping[str, Any],
    now: Shape,
    folder: Path,
    file: str,
    way_out: str = "",  # beside writing it back; "": a branch or a new run
) -> None:
    """Refuse to go on with other words than the run began with."""
    found = changes(began, now)
    if not found:
        return
    first = next(iter(found))
    more = f" ({len(found) - 1} more: {', '.join(list(found)[1:])})" if len(found) > 1 else ""
    way = "write it back"
    if way_out:
        way += f", or {way_out}"
    elif all(word.partition(".")[0] in MAY_CHANGE for word in found):
        way += f", or `coterie resume {folder} --allow-change` branches off into a new folder"
    else:
        way += ", or start a new run"
    raise BadInput(f"{_said(first, found[first], file)}{more}: {way}")


def _said(word: str, values: tuple[Any, Any], file: str) -> str:
    before, after = ("not set" if v is None else _shown(v) for v in values)
    return f"{word} was {before} when this run began, {file} says {after}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return f"{value!r}" if isinstance(value, float | int) else f"'{value}'"


def check_branch(found: Mapping[str, tuple[Any, Any]], file: str) -> None:
    """Refuse a branch that changes nothing, or what cannot change in the middle of a run."""
    if not found:
        raise BadInput(
            f"--allow-change, but {file} has the words that the run began with: change one, or "
            "resume without it"
        )
    for word, values in found.items():
        if word.partition(".")[0] not in MAY_CHANGE:
            raise BadInput(
                f"{_said(word, values, file)}: only [train], [schedule] and [options] can change "
                "in the middle of a run; write it back, or start a new run"
            )


def planned_shape(experiment: Experiment) -> Shape:
    """The words that a plan says of a run; what it leaves to the data is not among them."""
    defaults = {k: d for k, (_, d) in options_of("method", experiment.method).items()}
    shape = shape_of(experiment)
    shape |= {f"options.{k}": _plain(d) for k, d in defaults.items() if d is not None} | {
        w: v for w, v in shape.items() if w.startswith("options.")
    }
    unsaid = {w for w, v in shape.items() if v == "" or w.startswith("engine.")}
    return {w: v for w, v in shape.items() if w not in unsaid}
