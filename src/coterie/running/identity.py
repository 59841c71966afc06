"""The options that affect results, which a resumed run must match."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.option_names import rename_options
from coterie.experiment.config import Experiment, known_options_of
from coterie.experiment.stored import drop_unknown

# What is kept on disk, where the data lie and which processes do the work change no result; the
# data themselves have a checksum.
IRRELEVANT = ("keep", "dataset.data_dir")
# of [engine], the options that do; another device is another processor
ENGINE_OPTIONS = ("path", "width", "compile", "chosen", "precision")
# sections that a branch may change; "plugin" is code of one's own
MAY_CHANGE = ("train", "schedule", "options", "plugin")
Identity = dict[str, Any]  # {option: value}


class OptionChange(NamedTuple):
    """An option that is not the same as when a run began."""

    before: Any
    after: Any
    default: bool  # whether the run is older than the option, whose default stands for it


def identity_of(experiment: Experiment) -> Identity:
    """Every option of an experiment that shapes its result, by its full name."""
    settings = experiment.to_dict()
    flat = {"method": settings.pop("method"), "seed": settings.pop("seed")}
    for section, table in settings.items():
        flat |= {f"{section}.{option}": normalize(value) for option, value in table.items()}
    return {w: v for w, v in flat.items() if _affects_result(w)}


def defaults_of(experiment: Experiment) -> Identity:
    """The default of every option that an experiment can have, a method's as its builder declares
    them.
    """
    return {
        f"{section}.{option}": normalize(default)
        for section, known in known_options_of(drop_unknown(experiment)).items()
        for option, (_, default) in known.items()
    }


def _affects_result(option: str) -> bool:
    section, _, name = option.partition(".")
    if section == "engine":
        return name in ENGINE_OPTIONS
    return option not in IRRELEVANT and section not in IRRELEVANT


def normalize(value: Any) -> Any:
    """As JSON has it; no text and no items are the same to whoever reads a file, and so are a text
    and a list of it alone.
    """
    if isinstance(value, tuple | list) and len(value) < 2:
        return normalize(value[0]) if value else ""
    return [normalize(v) for v in value] if isinstance(value, tuple | list) else value


def find_changes(
    began: Mapping[str, Any], now: Identity, defaults: Identity
) -> dict[str, OptionChange]:
    """The options that are not the same as when a run began; one that is not said is its
    default, so that a run goes on which is older than an option.

    What was still open when the run began, and was then chosen for it, has not changed.
    """
    found = {}
    began = rename_options(began, {*now, *defaults})
    for option in [*began, *(w for w in now if w not in began)]:
        usual = defaults.get(option)
        before, after = normalize(began.get(option, usual)), normalize(now.get(option, usual))
        if before != after and not (option == "engine.chosen" and not before):
            found[option] = OptionChange(before, after, default=option not in began)
    return found


def changes_of(experiment: Experiment, began: Mapping[str, Any]) -> dict[str, OptionChange]:
    """The options of an experiment that are not those that its run began with."""
    return find_changes(began, identity_of(experiment), defaults_of(experiment))


def check_unchanged(
    found: Mapping[str, OptionChange],
    folder: Path,
    file: str,
    way_out: str = "",  # beside writing it back; "": a branch or a new run
) -> None:
    """Refuse to go on with other options than the run began with."""
    if not found:
        return
    first = next(iter(found))
    more = f" ({len(found) - 1} more: {', '.join(list(found)[1:])})" if len(found) > 1 else ""
    way = "write it back"
    if way_out:
        way += f", or {way_out}"
    elif all(option.partition(".")[0] in MAY_CHANGE for option in found):
        way += f", or `coterie resume {folder} --allow-change` branches off into a new folder"
    else:
        way += ", or start a new run"
    raise BadInput(f"{format_change(first, found[first], file)}{more}: {way}")


def format_change(option: str, change: OptionChange, file: str, run: str = "this run") -> str:
    """A change in words, with both values."""
    usual = "its default " * (change.default and change.before is not None)
    return (
        f"{option} was {usual}{_format_value(change.before)} when {run} began, "
        f"{file} says {_format_value(change.after)}"
    )


def _format_value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ",".join(map(_format_value, value))
    return f"{value!r}" if isinstance(value, float | int) else f"'{value}'"


def check_branch(found: Mapping[str, OptionChange], file: str) -> None:
    """Refuse a branch that changes nothing, or what cannot change in the middle of a run."""
    if not found:
        raise BadInput(
            f"--allow-change, but {file} has the options that the run began with: change one, or "
            "resume without it"
        )
    for option, change in found.items():
        if option.partition(".")[0] not in MAY_CHANGE:
            raise BadInput(
                f"{format_change(option, change, file)}: only [train], [schedule] and [options] "
                "can change "
                "in the middle of a run; write it back, or start a new run"
            )


def planned_identity_of(experiment: Experiment) -> Identity:
    """The options that a plan says of a run; what it leaves to the data is not among them."""
    options = {w: v for w, v in defaults_of(experiment).items() if w.startswith("options.")}
    shape = identity_of(experiment)
    shape |= {option: shape.get(option, default) for option, default in options.items()}
    unsaid = {w for w, v in shape.items() if v in (None, "") or w.startswith("engine.")}
    return {w: v for w, v in shape.items() if w not in unsaid}
