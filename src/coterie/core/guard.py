"""The `[guard]` table of an experiment: attacks, robust averages, and differential privacy."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.options import BelowOne, NonNegative, Range


class Guard(NamedTuple):
    """What bounds a client's influence, what is known of it afterwards, and who attacks."""

    # what stands for the weighted mean of uploads
    robust: Literal["none", "median", "trimmed", "krum", "norm"] = "none"
    # the share of uploads that `trimmed` takes off either end and `krum` leaves out
    hostile: Annotated[float, Range(0, 0.5, high_open=True)] = 0.25
    attack: Literal["none", "sign-flip", "scale", "noise"] = "none"
    attackers: BelowOne = 0.0  # the share of clients that attack
    dp: Literal["none", "client", "example"] = "none"  # whose presence is hidden
    dp_clip: NonNegative = 0.0  # the longest change of a client, or gradient of a row
    dp_noise: NonNegative = 0.0  # the deviation of the noise in units of dp_clip
    dp_epsilon: NonNegative = 0.0  # the noise is chosen so that the whole run spends this much
    dp_delta: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 1e-5


def check_guard(guard: Guard) -> None:
    """Refuse words that would change nothing, and those that lack another."""
    usual = Guard()
    if guard.hostile != usual.hostile and guard.robust not in ("trimmed", "krum"):
        raise BadInput(
            f"hostile = {guard.hostile:g} is for --robust trimmed or krum, not {guard.robust}: "
            "leave it out"
        )
    if (guard.attack == "none") != (guard.attackers == 0):
        raise BadInput(
            f"attack = {guard.attack} with attackers = {guard.attackers:g}: give both, as in "
            "--attack sign-flip --attackers 0.2"
        )
    if guard.dp == "none":
        for word in ("dp_clip", "dp_noise", "dp_epsilon", "dp_delta"):
            if getattr(guard, word) != getattr(usual, word):
                raise BadInput(
                    f"{word} = {getattr(guard, word):g} without --dp: add --dp client or "
                    "--dp example"
                )
        return
    if not guard.dp_clip:
        raise BadInput(f"dp = {guard.dp} needs a bound: give --dp-clip, such as 1")
    if bool(guard.dp_noise) == bool(guard.dp_epsilon):
        raise BadInput(
            f"dp = {guard.dp} needs --dp-noise or --dp-epsilon, one of them: the other follows "
            "from it"
        )
    if guard.robust != "none" and guard.dp == "client":
        raise BadInput(
            f"robust = {guard.robust} with dp = {guard.dp}: the guarantee covers a plain mean; "
            "leave one out"
        )
