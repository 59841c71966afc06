"""Schedules of the learning rate: its share in every round, or in every local step.

A schedule is named in `[train]`, with options of its own after a colon, as in
`lr_schedule = "cosine:warmup=5"`. Time counts in rounds from 0; where the share moves on with every
local step, a step of K in a round is 1 / K of a round, so that clients of any size end a round
alike. The share is an argument of a step: no schedule makes a program anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.core.errors import BadInput
from coterie.core.options import NonNegativeInt, PositiveInt, PositiveShare, Share, read_spec

CONSTANT = "constant"
Per = Literal["round", "step"]


def constant(at: float, warmup: NonNegativeInt = 0, per: Per = "round") -> float:
    """The learning rate itself."""
    return 1.0


def step(
    at: float,
    every: PositiveInt = 10,
    gamma: PositiveShare = 0.1,
    warmup: NonNegativeInt = 0,
    per: Per = "round",
) -> float:
    """Times `gamma` every so many rounds."""
    return math.pow(gamma, at // every)


def exponential(
    at: float, gamma: PositiveShare = 0.99, warmup: NonNegativeInt = 0, per: Per = "round"
) -> float:
    """Times `gamma` every round."""
    return math.pow(gamma, at)


def cosine(
    at: float,
    rounds: NonNegativeInt = 0,
    end: Share = 0.0,
    warmup: NonNegativeInt = 0,
    per: Per = "round",
) -> float:
    """Half a cosine from 1 to `end` in so many rounds, warm-up included; 0: those of the run."""
    done = min(1.0, at / max(1, rounds - warmup))
    return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2


SCHEDULES: dict[str, Callable[..., float]] = {
    CONSTANT: constant,
    "step": step,
    "exponential": exponential,
    "cosine": cosine,
}


@lru_cache(maxsize=64)
def read_schedule(spec: str) -> tuple[str, dict[str, Any]]:
    """The name of a schedule and its options; one that moves nothing is refused."""
    name, options = read_spec(spec, SCHEDULES, "lr_schedule")
    if name == CONSTANT and options.get("per") == "step" and not options.get("warmup"):
        raise BadInput("lr_schedule = constant:per=step: give it a warmup, or leave out per")
    if name == CONSTANT and options.get("warmup") == 1:
        raise BadInput("lr_schedule = constant:warmup=1 has no effect: give a warmup of 2 or more")
    for option in ("gamma", "end"):
        if options.get(option) == 1 and not options.get("warmup"):
            raise BadInput(
                f"lr_schedule = {spec}: at {option} = 1 the learning rate never changes: give a "
                f"smaller {option}, or leave the schedule out"
            )
    return name, options


def fill_rounds(spec: str, rounds: int) -> str:
    """The schedule with the rounds of the run, where it depends on them and does not say."""
    name, options = read_schedule(spec)
    if name == "cosine" and not options.get("rounds"):
        spec = ":".join([name, *(f"{k}={v}" for k, v in (options | {"rounds": rounds}).items())])
    share_at(spec, 0)  # refused where it cannot be
    first = options.get("warmup", 0) + options.get("every", 10)
    if name == "step" and rounds <= first:
        raise BadInput(
            f"lr_schedule = {spec} takes no step in a run of {rounds:,} rounds: the first one "
            f"comes after {first:,}; lower every, raise --rounds, or leave the schedule out"
        )
    return spec


def share_at(spec: str, round: float) -> float:
    """The share of the learning rate after so many rounds, counted from 0."""
    name, options = read_schedule(spec)
    warmup = options.get("warmup", 0)
    rounds = options.get("rounds", 0)
    if name == "cosine" and rounds <= warmup:
        raise BadInput(
            f"lr_schedule = {spec}: it has {rounds} rounds and {warmup} of them are its warm-up: "
            "give it more rounds, or less warmup"
        )
    rise = min(1.0, (round + 1) / warmup) if warmup else 1.0
    return rise * SCHEDULES[name](max(0.0, round - warmup), **options)


def compute_shares(spec: str, round: int, steps: Sequence[int]) -> Tensor:
    """The shares of clients that take so many steps in a round, [clients, steps]."""
    shares = torch.ones(len(steps), max(steps, default=0))
    if read_schedule(spec)[1].get("per", "round") == "round":
        return shares * share_at(spec, round)
    for k, count in enumerate(steps):
        shares[k, :count] = torch.tensor(_list_shares(spec, round, count))
    return shares


@lru_cache(maxsize=1024)
def _list_shares(spec: str, round: int, count: int) -> list[float]:
    return [share_at(spec, round + s / count) for s in range(count)]
