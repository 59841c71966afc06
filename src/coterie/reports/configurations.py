"""What the runs of a report have in common and where they differ, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.experiment.differences import describe_differences
from coterie.experiment.toml import to_toml
from coterie.reports.evidence import Evidence

Flat = dict[str, Any]  # {"section.option": value}


def describe_setup(evidence: Evidence) -> list[str]:
    """Split, network, rounds, rate and steps, each as a few words."""
    records = [record for each in evidence.records.values() for record in each]
    runs = [record.run for record in records]
    models = [model for run in runs for model in run.about["models"]]
    nets = list(dict.fromkeys(f"{m['name']}, {m['parameters']:,} parameters" for m in models))
    steps = [
        row.steps / (len(evidence.names) * max(1, record[0].round))
        for row, record in zip(evidence.rows, evidence.records.values(), strict=True)
    ]
    return [
        f"clients: {describe_differences(runs[0].experiment)}",
        f"network {' and '.join(nets[:3])}{', ...' if len(nets) > 3 else ''}",
        f"{_format_range([run.experiment.schedule.rounds for run in runs], ',d')} rounds",
        f"rate {_format_range([run.experiment.train.lr for run in runs], 'g')}",
        f"{_format_range(steps, '.3g')} steps per client and round",
    ]


def _format_range(numbers: Sequence[float], form: str) -> str:
    low, high = (f"{end(numbers):{form}}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def split_configurations(settings: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """(what all runs say, as TOML; what each says besides, a line per option)."""
    flat = [_flatten(each) for each in settings]
    shared = {
        option: value
        for option, value in flat[0].items()
        if all(option in other and other[option] == value for other in flat)
    }
    common: dict[str, Any] = {}
    for option, value in shared.items():
        section, _, name = option.rpartition(".")
        (common.setdefault(section, {}) if section else common)[name] = value
    own = [
        ", ".join(f"{w} = {v}" for w, v in each.items() if w not in shared and v is not None)
        for each in flat
    ]
    return to_toml(common), own


def _flatten(settings: Mapping[str, Any]) -> Flat:
    found: Flat = {}
    for option, value in settings.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        found |= {f"{option}.{k}": v for k, v in inner} if inner else {option: value}
    return {option: value for option, value in found.items() if value != {}}
