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


def ratios_of(words: Any) -> dict[str, Ratio]:
    """The table `[smaller]` of a recipe, checked."""
    if not isinstance(words, Mapping):
        raise BadInput(f"smaller = {format_value(words)}: give a table, as [smaller]")
    for word in words:
        if word not in WORDS:
            raise BadInput(f"[smaller] has no option '{word}'{suggest_name(word, WORDS)}")
    return {word: _ratio(word, value) for word, value in words.items()}


def _ratio(word: str, value: Any) -> Ratio:
    pair = list(value) if isinstance(value, list | tuple) else [value, 1]
    numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in pair)
    if len(pair) != 2 or not numbers or not 0 < pair[0] < pair[1]:
        raise BadInput(
            f"smaller.{word} = {format_value(value)}: give a share below 1, or ours and the "
            "paper's, as "
            "[5, 20]"
        )
    return (pair[0], pair[1]) if isinstance(value, list | tuple) else float(value)


def say_ratios(ratios: Mapping[str, Ratio]) -> tuple[str, ...]:
    """Every ratio in words, as "5 of 20 local epochs"."""
    return tuple(_format_ratio(word, ratio) for word, ratio in ratios.items())


def _format_ratio(word: str, ratio: Ratio) -> str:
    if isinstance(ratio, tuple):
        ours, paper = (f"{n:,g}" for n in ratio)
        if word in COUNTED:
            return COUNTED[word].format(ours, paper)
        return WORDS[word].format(f"{ours}/{paper}")
    share = f"{ratio:g}" if word == "width" else f"{100 * ratio:g} %"
    return WORDS[word].format(share)
