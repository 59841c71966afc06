"""What stands between the clients' uploads and the server: attackers, clipping and noise, and
averages that bound a client's influence.

It works on the replies of any engine, so that a simulation and a deployment have one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from coterie.core.device import CPU, to_default_device
from coterie.core.errors import BadInput
from coterie.core.guard import Guard
from coterie.core.method import Replies, Tree
from coterie.core.point import pick, stack
from coterie.core.rng import stream
from coterie.core.robust import MIN_UPLOADS, build_average, compute_clip_factors, select_krum
from coterie.core.updates import add_noise, compute_updates, has_models, origin_of, scale_updates
from coterie.methods.declare import UploadDeclaration

FACTORS = {"sign-flip": -1.0, "scale": -50.0}  # of an attacker's change
NOISE = 10.0  # times its own length: the noise that an attacker adds to its change
NO_GUARD = Guard()


class UploadGuard(NamedTuple):
    """Every upload passes here on its way to the server."""

    guard: Guard = NO_GUARD
    seed: int = 0
    attackers: frozenset[int] = frozenset()
    expected: float = 0.0  # clients asked per round, by which a private sum is divided
    promise: Mapping[str, Any] = {}  # what differential privacy promises, for run.json

    def facts(self) -> dict[str, Any]:
        """What a reader of the run must know."""
        said: dict[str, Any] = {"privacy": dict(self.promise)} if self.promise else {}
        return said | ({"attackers": sorted(self.attackers)} if self.attackers else {})

    def filter(self, replies: Replies, send: Callable[[int], Tree], *when: object) -> Replies:
        """The replies as the server sees them."""
        guard, upload = self.guard, replies.upload
        active = self.attackers or guard.dp == "client" or guard.robust != "none"
        if not active or not pytree.tree_leaves(upload):
            return replies
        origins = stack(
            [origin_of(pick(upload, k), send(int(i))) for k, i in enumerate(replies.ids)]
        )
        if self.attackers:
            upload = self._attack(replies, origins, when)
        if guard.dp == "client":
            upload = self._privatize(upload, origins, when)
        replies = _replace_upload(replies, upload)
        if has_models(upload) and len(replies.ids) >= MIN_UPLOADS:
            replies = _limit_influence(replies, origins, guard)
        return replies

    def _attack(self, replies: Replies, origins: Tree, when: tuple[object, ...]) -> Tree:
        """The uploads, those of attackers turned round, blown up or drowned; single numbers stay
        true.
        """
        hostile = torch.tensor([i in self.attackers for i in replies.ids.tolist()], device=CPU)
        factor = torch.where(hostile, FACTORS.get(self.guard.attack, 1.0), 1.0)
        spoilt = scale_updates(replies.upload, origins, factor)
        if self.guard.attack == "noise":
            moves = compute_updates(replies.upload, origins)
            drawn = self._draw(moves, "attack", *when)
            drawn *= hostile[:, None] * NOISE * moves.norm(dim=1, keepdim=True)
            spoilt = add_noise(spoilt, drawn / moves.shape[1] ** 0.5)
        return pytree.tree_map(lambda a, b: b if a.dim() > 1 else a, replies.upload, spoilt)

    def _privatize(self, upload: Tree, origins: Tree, when: tuple[object, ...]) -> Tree:
        """Uploads whose equal mean is a Gaussian mechanism: changes are clipped, summed with noise,
        and divided by the number of clients that a round expects.

        The noise of the sum is spread over the uploads in equal parts, since the server forms the
        sum.
        """
        moves, clip = compute_updates(upload, origins), self.guard.dp_clip
        m = len(moves)
        tiny = torch.finfo(moves.dtype).tiny
        factors = (clip / moves.norm(dim=1).clamp(min=tiny)).clamp(max=1) * m / self.expected
        noise = self._draw(moves, "dp", *when) * self.guard.dp_noise * clip
        return add_noise(scale_updates(upload, origins, factors), noise * m**0.5 / self.expected)

    def _draw(self, like: Tensor, *name: object) -> Tensor:
        rng = stream(self.seed, *name)
        return torch.from_numpy(rng.standard_normal(tuple(like.shape)))


def _limit_influence(replies: Replies, origins: Tree, guard: Guard) -> Replies:
    """The replies with no more influence for any of them than the rule leaves it."""
    if guard.robust == "norm":
        moves = compute_updates(replies.upload, origins, models=True)
        return _replace_upload(
            replies,
            scale_updates(replies.upload, origins, compute_clip_factors(moves), models=True),
        )
    if guard.robust == "krum":
        moves = compute_updates(replies.upload, origins, models=True)
        return _keep_replies(replies, select_krum(moves, guard.hostile))
    return _replace_upload(
        replies._replace(average=build_average(guard.robust, guard.hostile)), replies.upload
    )


def _keep_replies(replies: Replies, kept: Tensor) -> Replies:
    """The replies of those who are kept."""
    kept = to_default_device(kept)
    fewer = replies._replace(ids=replies.ids[kept], sizes=replies.sizes[kept])
    return _replace_upload(fewer, pick(replies.upload, kept))


def _replace_upload(replies: Replies, upload: Tree) -> Replies:
    """The replies with another upload, in their one group too."""
    whole = replies._replace(upload=upload)
    return whole._replace(groups=(whole._replace(groups=()),))


def attackers_of(guard: Guard, clients: int, seed: int) -> frozenset[int]:
    """Who attacks: a draw of its own, the same for every method."""
    if guard.attack == "none":
        return frozenset()
    count = max(1, round(guard.attackers * clients))
    return frozenset(stream(seed, "attackers").choice(clients, count, replace=False).tolist())


def check_guard(
    guard: Guard, method: str, declared: UploadDeclaration, architectures: int, clients: int
) -> None:
    """Refuse, before any work, a guard that does not fit the method."""
    if guard == NO_GUARD:
        return
    if guard.attack != "none" and round(guard.attackers * clients) >= clients:
        raise BadInput(
            f"attackers = {guard.attackers:g} of {clients} clients leaves nobody: give less"
        )
    if guard.robust != "none" and declared.uploads not in ("mean", "models"):
        raise BadInput(
            f"robust = {guard.robust} stands for a mean of models, and {method} forms none: leave "
            "it out, or choose a method such as fedavg"
        )
    if guard.attack != "none" and declared.uploads == "nothing":
        raise BadInput(f"attack = {guard.attack}, but {method} uploads nothing: leave it out")
    if architectures > 1:
        raise BadInput(
            f"[guard] compares uploads with each other, and {architectures} architectures were "
            "given: give one --model"
        )


def hide_attackers(gate: UploadGuard, column: np.ndarray) -> np.ndarray:
    """A measure of every client with nothing said of attackers: results are of honest clients."""
    if not gate.attackers:
        return column
    column = column.astype(float, copy=True)
    column[sorted(i for i in gate.attackers if i < len(column))] = np.nan
    return column
