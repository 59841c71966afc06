"""The trials of a method's tuning: one file that is whole after every trial, and read again to go
on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.core.files import read_text, write_text
from coterie.core.option_names import rename_options
from coterie.results.run import Run
from coterie.running.loop import RoundReport

FOLDER, FILE = "tuning", "tuning.json"
State = Literal["finished", "stopped", "out of time", "diverged", "refused", "repeated"]


class Trial(NamedTuple):
    """Options that were tried, and how well they did on validation data."""

    options: dict[str, Any]
    validation: list[float | None]  # of each seed that was played; of a stopped one, at its stop
    rounds: int = 0  # played with the first seed
    state: State = "finished"
    # of a search alone
    point: dict[str, Any] | None = None  # numbers, and positions in lists of choices
    curve: dict[str, float] | None = None  # {round of the last stage: score} while it was played
    rungs: dict[str, float] | None = None  # the score at every halving that it came to
    seconds: float | None = None  # where time is limited

    @property
    def score(self) -> float | None:
        """The mean over the seeds; None where any has none."""
        known = [s for s in self.validation if s is not None]
        whole = known and len(known) == len(self.validation)
        return float(np.mean(known)) if whole else None


class Record(NamedTuple):
    """All trials of a method; `best` once its tuning is over."""

    space: dict[str, Any]  # {option: values, or a range}
    tried: list[Trial]
    best: dict[str, Any] | None = None


def score_of(run: Run) -> float:
    """What tuning goes by: the mean over clients on validation data at the last round."""
    return run.summary("validation").mean


def score_of_report(report: RoundReport) -> float | None:
    """The same while a run goes on; None in rounds that are not measured."""
    return report.value


def select_best(tried: Sequence[Trial], better: int) -> Trial:
    """The best that was played to the end, the first of equals; the first where none was."""
    scored = [(t.score, t) for t in tried if t.state == "finished"]
    known = [(score, t) for score, t in scored if score is not None and score == score]
    return max(known, key=lambda pair: better * pair[0])[1] if known else tried[0]


def write_record(folder: Path, record: Record) -> None:
    """The record, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {"space": record.space, "tried": [_to_dict(trial) for trial in record.tried]}
    best = {} if record.best is None else {"best": record.best}
    write_text(folder / FILE, json.dumps(known | best, indent=1))


def _to_dict(trial: Trial) -> dict[str, Any]:
    return {option: value for option, value in trial._asdict().items() if value is not None}


def _rename_options(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A trial by the names that options have now."""
    found = dict(entry)
    for field in ("options", "point"):
        if found.get(field) is not None:
            found[field] = rename_options(found[field])
    return found


def read_record(folder: Path) -> Record | None:
    """What was tried so far; None where nothing was."""
    try:
        known = json.loads(read_text(folder / FILE))
        tried = [Trial(**_rename_options(entry)) for entry in known["tried"]]
        best = known.get("best")
        space = rename_options(known.get("space", {}))
        return Record(space, tried, None if best is None else rename_options(best))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise BadInput(
            f"{folder / FILE} is damaged or of another version: restore it from a copy, or delete "
            f"{folder} to tune again"
        ) from None


def check_space(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], plan: str) -> None:
    """Refuse to go on with other values than those that a tuning began with."""
    for option in {**before, **now}:
        was, says = before.get(option), now.get(option)
        if was != says:
            raise BadInput(
                f"{option} of {folder.name} was tuned over {was}, {plan} says {says}: write it "
                "back, or start a new comparison"
            )
