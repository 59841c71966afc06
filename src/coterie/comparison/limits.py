"""How long a search may go on: so many trials, so much time, or what comes first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from coterie.core.errors import BadInput, format_value, suggest_name
from coterie.core.options import Range, coerce

UNITS = {"h": 3600, "m": 60, "s": 1}
MAX_SECONDS = 3650 * 24 * 3600  # seconds, ten years
MAX_TRIALS = 10_000


class SearchLimits(NamedTuple):
    """The `[search]` table of a comparison: what each method gets to be tuned."""

    trials: int | None = None  # of each method
    budget: str | None = None  # of the whole comparison, as "15m": an equal share for each method
    listed: bool = False  # only the options that [tune.METHOD] lists are searched
    # their values are tried step by step, as `comparison.steps` says; `trials`, if nobody gave
    # them, follow from `budget` once, and are written down
    steps: bool = False

    @property
    def seconds(self) -> float:
        """The budget in seconds; infinite where there is none."""
        return seconds_of(self.budget) if self.budget else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """As a comparison's folder has it; what is searched stands beside it."""
        known = self._replace(listed=True)._asdict()
        return {option: value for option, value in known.items() if option != "steps" or value}

    def describe(self, methods: int) -> str:
        """What each of so many methods gets, in words."""
        share = [format_time(self.seconds / methods)] if self.budget else []
        many = "s" if self.trials != 1 else ""
        trials = [f"{self.trials:,} trial{many}"] if self.trials else []
        return ", at most ".join([*share, *trials])


def limits_of(settings: Any) -> SearchLimits | None:
    """The limits that options say; None where they say nothing."""
    if not isinstance(settings, Mapping):
        raise BadInput(
            f"search = {format_value(settings)}: give a table, as [search] with trials = 20"
        )
    for option in settings:
        if option not in SearchLimits._fields:
            raise BadInput(
                f"unknown option {format_value(option)} in [search]"
                f"{suggest_name(option, LIMIT_NAMES)}"
            )
    trials, budget = settings.get("trials"), settings.get("budget")
    if trials is not None:
        trials = coerce(Annotated[int, Range(1, MAX_TRIALS)], trials, "trials", 20)
    if budget is not None:
        seconds_of(budget)
    if trials is None and budget is None:
        if settings:
            raise BadInput('[search] has no end: give trials = 20 or budget = "15m"')
        return None
    listed, steps = (coerce(bool, settings.get(key, False), key) for key in ("listed", "steps"))
    return SearchLimits(trials, budget, listed, steps)


LIMIT_NAMES = SearchLimits._fields


def read_limits(trials: Any, budget: Any) -> tuple[SearchLimits | None, bool]:
    """The limits of a command, and whether it leaves the choice of rates and networks to it."""
    if trials is None and budget is not None and str(budget).strip() == "0":
        return None, False
    known = {"trials": trials, "budget": budget}
    search = limits_of({option: value for option, value in known.items() if value is not None})
    return search, search is None


def seconds_of(text: Any) -> float:
    """A time such as 90s, 15m or 1h30m in seconds."""
    parts = "".join(rf"(?:(\d{{1,9}}){unit})?" for unit in UNITS)
    found = re.fullmatch(parts, str(text).strip().lower())
    seconds = 0
    if found and isinstance(text, str):
        seconds = sum(int(n or 0) * u for n, u in zip(found.groups(), UNITS.values(), strict=True))
    if not 0 < seconds <= MAX_SECONDS:
        raise BadInput(f"budget = {format_value(text)}: give a time such as 90s, 15m or 1h30m")
    return float(seconds)


def format_time(seconds: float) -> str:
    """Seconds as a time that reads like a budget."""
    whole = max(1, round(seconds))
    parts = {"h": whole // 3600, "m": whole % 3600 // 60, "s": whole % 60}
    return "".join(f"{count}{unit}" for unit, count in parts.items() if count)
