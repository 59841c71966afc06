"""In what a recipe is smaller than its paper: its table `[smaller]`, which runs ignore.

    [smaller]
    width = [1, 8]              # ours, the paper's
    epochs = [5, 20]
    rows = 0.35                 # or a share

Runs of such a recipe can confirm what the paper says, and not refute it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.errors import BadInput, format_value, suggest_name

WORDS = {
    "width": "networks {} as wide",
    "rows": "{} of the rows of a client",
    "rounds": "{} of the rounds",
    "epochs": "{} of the local epochs",
    "public_rows": "{} of the public rows",
}
COUNTED = {
    "rows": "{} of {} rows of a client",
    "rounds": "{} of {} rounds",
    "epochs": "{} of {} local epochs",
    "public_rows": "{} of {} public rows",
}

Ratio = float | tuple[float, float]  # a share, or ours and the paper's


def ratios_of(settings: Any) -> dict[str, Ratio]:
    """The table `[smaller]` of a recipe, checked."""
    if not isinstance(settings, Mapping):
        raise BadInput(f"smaller = {format_value(settings)}: give a table, as [smaller]")
    for option in settings:
        if option not in WORDS:
            raise BadInput(f"[smaller] has no option '{option}'{suggest_name(option, WORDS)}")
    return {option: _ratio(option, value) for option, value in settings.items()}


def _ratio(option: str, value: Any) -> Ratio:
    pair = list(value) if isinstance(value, list | tuple) else [value, 1]
    numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in pair)
    if len(pair) != 2 or not numbers or not 0 < pair[0] < pair[1]:
        raise BadInput(
            f"smaller.{option} = {format_value(value)}: give a share below 1, or ours and the "
            "paper's, as "
            "[5, 20]"
        )
    return (pair[0], pair[1]) if isinstance(value, list | tuple) else float(value)


def shorten(ratio: Ratio, scale: float) -> Ratio:
    """A ratio of runs that take a share of ours."""
    return (ratio[0] * scale, ratio[1]) if isinstance(ratio, tuple) else ratio * scale


def say_ratios(ratios: Mapping[str, Ratio]) -> tuple[str, ...]:
    """Every ratio in words, as "5 of 20 local epochs"."""
    return tuple(_format_ratio(option, ratio) for option, ratio in ratios.items())


def _format_ratio(option: str, ratio: Ratio) -> str:
    if isinstance(ratio, tuple):
        ours, paper = (f"{n:,g}" for n in ratio)
        if option in COUNTED:
            return COUNTED[option].format(ours, paper)
        return WORDS[option].format(f"{ours}/{paper}")
    share = f"{ratio:g}" if option == "width" else f"{100 * ratio:g} %"
    return WORDS[option].format(share)
