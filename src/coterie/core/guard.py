"""The `[guard]` table of an experiment: attacks, robust averages, and differential privacy."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from coterie.core.errors import BadInput
from coterie.core.options import BelowOne, NonNegative, Range


class Guard(NamedTuple):
    """What bounds a client's influence, what is known of it afterwards, and who attacks."""

    # the robust average in place of the weighted mean of uploads
    robust: Literal["none", "median", "trimmed", "krum", "norm"] = "none"
    # the share of uploads that robust = trimmed takes off either end and krum leaves out
    hostile: Annotated[float, Range(0, 0.5, high_open=True)] = 0.25
    # what attackers do to their uploads
    attack: Literal["none", "sign-flip", "scale", "noise"] = "none"
    attackers: BelowOne = 0.0  # the share of clients that attack
    # differential privacy: "client" hides a whole client (--dp client needs --weighting equal),
    # "example" a single row
    dp: Literal["none", "client", "example"] = "none"
    dp_clip: NonNegative = 0.0  # clipping norm: of a client's update, or of a row's gradient
    dp_noise: NonNegative = 0.0  # standard deviation of the noise in units of dp_clip
    # epsilon that the whole run may spend; the noise follows from it
    dp_epsilon: NonNegative = 0.0
    # delta of (epsilon, delta)-differential privacy
    dp_delta: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 1e-5


def check_guard(guard: Guard) -> None:
    """Refuse options that would change nothing, and those that lack another."""
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
        for option in ("dp_clip", "dp_noise", "dp_epsilon", "dp_delta"):
            if getattr(guard, option) != getattr(usual, option):
                raise BadInput(
                    f"{option} = {getattr(guard, option):g} without --dp: add --dp client or "
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
