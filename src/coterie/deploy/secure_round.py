"""The server's side of a secure sum (see secure_sum): it relays keys and shares, adds what is
masked, and takes the masks off the sum of those who answered.

Who fails before masks come off is left out, and the sum is begun again without it. Once sites were
asked to reveal shares, they do so for this sum only, so it is begun again with the same sites.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.core.errors import BadInput
from coterie.core.method import Train
from coterie.deploy.config_files import FEWEST_SUMMED
from coterie.deploy.replies import Answer, Bounds, check_reply, compute_bounds
from coterie.deploy.secure_masks import MASKED, REVEAL, SHARES, name_sum, read_keys, write_keys
from coterie.deploy.secure_sum import PublicKeys, Reveal, threshold_of, to_numbers, unmask_sum
from coterie.deploy.wire import Content, Head, decode_like
from coterie.engines.base import EngineSetup
from coterie.experiment.schedule import Schedule
from coterie.methods.declare import UploadDeclaration

# (kind, what each site is told, how large replies may be) -> answers
Ask = Callable[[str, Mapping[int, Head], Mapping[int, Bounds] | None], dict[int, Answer]]
LeaveOut = Callable[[int, Answer, str], None]


class SumFailed(BadInput):
    """A sum that was not unmasked, and which sites it is begun again with."""

    def __init__(self, line: str, again: Collection[int]) -> None:
        super().__init__(line)
        self.again = sorted(again)


class SecureSum(NamedTuple):
    """The weighted sum of the uploads of those who answered."""

    total: np.ndarray  # [n] float64
    answered: list[int]


def sum_uploads(
    ask: Ask,
    leave_out: LeaveOut,
    offered: Mapping[int, Any],  # the keys of each site that trained
    weights: Mapping[int, int],
    length: int,  # of an upload
    needed: int,  # sites in the sum, counted before anything is revealed
    run: str,
    token: str,
) -> SecureSum:
    """Sum what the sites hold, in three trips."""
    peers = _read_all(offered, read_keys, leave_out)
    _check_count(peers, offered, len(offered))
    shown = {str(i): write_keys(keys) for i, keys in peers.items()}
    answers = ask(SHARES, {i: {"peers": shown} for i in peers}, None)
    given = _read_all(answers, lambda answer: _read_shares(answer, peers), leave_out)
    _check_count(given, peers, len(peers))
    heads = {
        i: {"shares": {str(j): given[j][str(i)] for j in peers if j != i}, "weight": weights[i]}
        for i in peers
    }
    like = torch.zeros(length, dtype=torch.int64)
    bounds = dict.fromkeys(peers, compute_bounds(like))
    answers = ask(MASKED, heads, bounds)
    masked = _read_all(answers, lambda answer: _read_vector(answer, like), leave_out)
    _check_count(masked, peers, max(needed, threshold_of(len(peers))))
    answered = sorted(masked)
    answers = ask(REVEAL, {i: {"answered": answered} for i in answered}, None)
    reveals = _read_all(answers, lambda answer: _read_reveal(answer, peers, answered), leave_out)
    if len(reveals) < threshold_of(len(peers)):
        raise SumFailed(_describe_few(len(reveals), len(peers)), answered)
    try:
        total = unmask_sum(masked, reveals, peers, name_sum(run, token, peers))
    except (ValueError, OverflowError):
        why = "the shares that the sites revealed do not fit together: one of them is false"
        raise SumFailed(why, answered) from None
    return SecureSum(to_numbers(total), answered)


def _read_all(
    answers: Mapping[int, Any], read: Callable[[Any], Any], leave_out: LeaveOut
) -> dict[int, Any]:
    """What can be read of the answers; who sent something else is left out."""
    found = {}
    for i, answer in answers.items():
        try:
            found[i] = read(answer)
        except BadInput as problem:
            leave_out(i, answer if isinstance(answer, Content | str) else "", str(problem))
    return found


def _check_count(found: Mapping[int, Any], asked: Mapping[int, Any], needed: int) -> None:
    """Begin again without those who failed, where masks of the others would not cancel."""
    if len(found) < max(needed, FEWEST_SUMMED):
        raise SumFailed(_describe_few(len(found), len(asked)), found)


def _describe_few(count: int, sites: int) -> str:
    return f"{count} of {sites} sites have answered all steps of a secure sum, which are too few"


def _read_shares(answer: Answer, peers: Mapping[int, PublicKeys]) -> dict[str, str]:
    shares = check_reply(answer).head.get("shares")
    if not isinstance(shares, dict) or not all(isinstance(text, str) for text in shares.values()):
        raise BadInput("sent no shares: left out")
    if not shares.keys() < {str(i) for i in peers} or len(shares) != len(peers) - 1:
        raise BadInput("sent shares for other sites than were asked for: left out")
    return shares


def _read_vector(answer: Answer, like: torch.Tensor) -> np.ndarray:
    found: torch.Tensor = decode_like(check_reply(answer), like)
    return found.numpy().view(np.uint64)


def _read_reveal(
    answer: Answer, peers: Mapping[int, PublicKeys], answered: Collection[int]
) -> Reveal:
    head = check_reply(answer).head
    gone = peers.keys() - set(answered)
    try:
        own, mask = (
            {int(i): int(text, 16) for i, text in head[part].items()} for part in Reveal._fields
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("sent shares that are no numbers: left out") from None
    if own.keys() != set(answered) or mask.keys() != gone:
        raise BadInput("revealed shares of other sites than were asked for: left out")
    return Reveal(own, mask)


def check_secure_sum(
    method: str, declared: UploadDeclaration, setup: EngineSetup, schedule: Schedule, robust: str
) -> None:
    """Refuse, by name, what needs single uploads."""
    what, way = "privacy.secure_sum = true shows the server a sum only", ""
    if declared.uploads == "nothing":
        way = f"{method} uploads nothing: leave it out"
    elif declared.uploads != "mean":
        way = f"{method} needs every upload: leave it out, or choose a method such as fedavg"
    elif robust != "none":
        way = f"robust = {robust} compares uploads: leave one out"
    elif len(setup.models) > 1:
        way = f"{len(setup.models)} architectures have no common sum: give one --model"
    elif schedule.trains == "all" and schedule.participation != 1:
        way = "with trains = all, sites train that are not part of it: write trains = sampled"
    elif schedule.sample_size(setup.federation.clients) < FEWEST_SUMMED:
        way = f"participation = {schedule.participation:g} asks fewer than {FEWEST_SUMMED} sites"
    if way:
        raise BadInput(f"{what}, and {way}")


def weigh_sites(
    declared: UploadDeclaration, train: Train, sizes: Mapping[int, int]
) -> dict[int, int]:
    """The weight of each site in the sum, as the method's mean has it."""
    equal = declared.weights == "equal" or train.weighting == "equal"
    return {i: 1 if equal else size for i, size in sizes.items()}
