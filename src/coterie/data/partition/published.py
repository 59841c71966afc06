"""The splits of single papers, draw by draw as their generators make them where that is known."""

import math
import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from coterie.core.errors import BadInput, suggest_name
from coterie.core.options import NonNegativeInt, Positive, PositiveInt, Seed
from coterie.data.partition.counts import (
    Parts,
    Rng,
    assign_rows,
    check_classes_each,
    check_counts,
    consecutive_classes,
)

Draws = Literal["stream", "legacy"]  # from coterie's own streams, or as the published script draws
# a fifth of the rows of PersFL's users on MNIST DS-3, as its authors' files have them
PERSFL_TEST = (935, 914, 871, 933, 824, 1283, 1206, 1100, 1193, 1244)


def lognormal(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: PositiveInt = 2,
    draws: Draws = "stream",
    legacy_seed: Seed = 1,
) -> Parts:
    """PersFL DS-3: consecutive classes, sizes from LogNormal(0, 2) as in pFedMe's generator.

    classes_each: number of classes of each client.
    draws: "stream" uses coterie's own random streams, "legacy" repeats the draws of the published
        script.
    legacy_seed: seed of the published script's generator, with draws = legacy.
    """
    counts = _pfedme_counts(labels, clients, rng, classes_each, draws, legacy_seed)
    return assign_rows(labels, counts, rng)


def pfedme_cifar(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: PositiveInt = 3,
    draws: Draws = "legacy",
    legacy_seed: Seed = 1,
) -> Parts:
    """pFedMe's CIFAR-10: 20 clients of 3 consecutive classes.

    Legacy seed 1 gives 54,572 of 60,000 rows.

    classes_each: number of classes of each client.
    draws: "stream" uses coterie's own random streams, "legacy" repeats the draws of the published
        script.
    legacy_seed: seed of the published script's generator, with draws = legacy.
    """
    counts = _pfedme_counts(labels, clients, rng, classes_each, draws, legacy_seed)
    return assign_rows(labels, counts, rng)


def perfedavg(labels: np.ndarray, clients: int, rng: Rng, *, a: PositiveInt | None = None) -> Parts:
    """PersFL DS-4, Per-FedAvg: half of the clients hold `a` rows of each lower class.

    Each other client holds a/2 rows of one lower class and 2a rows of one upper class.

    a: rows per class; none: 68 on CIFAR-10 and 196 on MNIST, as the papers have, elsewhere the
        largest number that fits, at most 196.
    """
    if clients % 2:
        raise BadInput(
            f"num_clients = {clients:,}: partition 'perfedavg' has two equal halves; give an even "
            "number"
        )
    sizes = np.unique(labels, return_counts=True)[1]
    low, half = len(sizes) // 2, clients // 2
    if low == 0:
        raise BadInput("partition 'perfedavg' needs at least two classes; use --partition iid")
    shares = np.zeros((clients, len(sizes)))  # in units of a
    shares[:half, :low] = 1
    others = np.arange(half, clients)
    shares[others, rng.permutation(np.resize(rng.permutation(low), half))] = 0.5
    shares[others, rng.permutation(np.resize(low + rng.permutation(len(sizes) - low), half))] = 2
    if a is None:
        wanted = shares.sum(0)
        a = min(196, int((sizes[wanted > 0] / wanted[wanted > 0]).min()) // 2 * 2)
    if a < 2:
        raise BadInput(
            f"a = {a} rows per class: partition 'perfedavg' needs at least 2; "
            f"lower num_clients = {clients:,}"
        )
    return assign_rows(labels, (shares * a).astype(int), rng)


def pairs(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    draws: Literal["stream", "legacy", "persfl"] = "legacy",
    legacy_seed: Seed = 1,
) -> Parts:
    """PFML's MNIST: client u holds part u//5 of the digits 2u and 2u+1 (mod 10).

    A class is cut by drawing sizes from [R//(owners+1), R//2), where R rows remain; the last owner
    takes what is left. Legacy seed 1 gives 1,556 to 5,112 rows per client.

    draws: "stream" uses coterie's own random streams, "legacy" repeats the draws of the published
        script; "persfl" has the sizes of PersFL's ten users on MNIST DS-3, 52,515 rows in all.
    legacy_seed: seed of the published script's generator, with draws = legacy.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    if draws == "persfl":
        _check_legacy_seed(draws, legacy_seed)
        return assign_rows(labels, _persfl_counts(sizes, clients), rng)
    step = len(sizes) // 2
    if len(sizes) % 2 or clients % step:
        raise BadInput(
            f"num_clients = {clients:,} with {len(sizes)} classes: partition 'pairs' needs "
            f"an even number of classes and a multiple of {max(step, 1)} clients"
        )
    owners = clients // step
    whole = _draws_of(draws, legacy_seed, rng)[1]
    cuts = np.zeros((len(sizes), owners), int)
    for label, left in enumerate(sizes):
        for part in range(owners - 1):
            if not 0 < left // (owners + 1) < left // 2:
                raise BadInput(
                    f"partition 'pairs' ran out of rows of class {label} for {owners} owners; "
                    "lower clients"
                )
            cuts[label, part] = whole(left // (owners + 1), left // 2)
            left -= cuts[label, part]
        cuts[label, -1] = left
    counts = np.zeros((clients, len(sizes)), int)
    for u in range(clients):
        for label in (2 * u % len(sizes), (2 * u + 1) % len(sizes)):
            counts[u, label] = cuts[label, u // step]
    return assign_rows(labels, counts, rng)


def _persfl_counts(sizes: np.ndarray, clients: int) -> np.ndarray:
    """[clients, classes] of PersFL's DS-3 on MNIST: both digits of a user in the proportion that
    the data have.
    """
    wanted = 5 * np.array(PERSFL_TEST)
    if clients != len(wanted) or len(sizes) != 10:
        raise BadInput(
            f"draws = 'persfl' is for ten clients and ten classes, not {clients:,} and "
            f"{len(sizes)}: use draws = legacy"
        )
    counts = np.zeros((clients, len(sizes)), int)
    for u, total in enumerate(wanted):
        first = 2 * u % len(sizes)
        counts[u, first] = round(total * sizes[first] / sizes[first : first + 2].sum())
        counts[u, first + 1] = total - counts[u, first]
    return counts


def ktpfl_1(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    many: NonNegativeInt | None = None,
    few: NonNegativeInt | None = None,
) -> Parts:
    """KT-pFL Non-IID_1: `many` rows per lower class and `few` per upper one, or the reverse.

    Half of the clients have the one, half the other.

    many: rows of each class of the client's half; none: 450 for 20 clients, 90 for 100, and less
        where a class has less than 6,000 rows.
    few: rows of each other class; none: 150 for 20 clients, 30 for 100, and less in the same way.
    """
    if clients % 2:
        raise BadInput(
            f"num_clients = {clients:,}: partition 'ktpfl-1' has two equal groups; give an even "
            "number"
        )
    sizes = np.unique(labels, return_counts=True)[1]
    scale = 20 / clients * min(1, sizes.min() / 6000)
    many = int(450 * scale + 1e-9) if many is None else many
    few = int(150 * scale + 1e-9) if few is None else few
    lower, first = np.arange(len(sizes)) < len(sizes) // 2, np.arange(clients) < clients // 2
    counts = np.where(lower[None, :] == first[:, None], many, few)
    return assign_rows(labels, counts, rng)


def ktpfl_2(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: PositiveInt = 2,
    each: PositiveInt | None = None,
) -> Parts:
    """KT-pFL Non-IID_2: every client draws some classes and has equally many rows of each.

    classes_each: number of classes of each client.
    each: rows of each class; none: 300, or as many as there are for every owner.
    """
    values, sizes = np.unique(labels, return_counts=True)
    check_classes_each(classes_each, len(values))
    counts = np.zeros((clients, len(sizes)), int)
    for u in range(clients):
        counts[u, rng.choice(len(sizes), classes_each, replace=False)] = 1
    owners = np.maximum(counts.sum(0), 1)
    each = min(300, int((sizes // owners).min())) if each is None else each
    return assign_rows(labels, counts * each, rng)


def powerlaw(
    labels: np.ndarray, clients: int, rng: Rng, *, draws: Draws = "stream", legacy_seed: Seed = 0
) -> Parts:
    """FedProx's MNIST, 1,000 clients: two classes each, in sizes that follow a power law.

    Client u has 5 rows of the classes u and u+1 (mod 10), and LogNormal(0, 2) shares of the rest.

    draws: "stream" uses coterie's own random streams, "legacy" repeats the draws of the published
        script.
    legacy_seed: seed of the published script's generator, with draws = legacy.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    kinds = len(sizes)
    if clients % kinds:
        raise BadInput(
            f"num_clients = {clients:,}: partition 'powerlaw' gives every class equally many "
            f"owners; give a multiple of {kinds}"
        )
    counts = consecutive_classes(clients, kinds, 2) * 5
    check_counts(counts, labels)
    rest = sizes - counts.sum(0)
    p = _draws_of(draws, legacy_seed, rng, usual=0)[0](0, 2.0, (kinds, clients // kinds, 2))
    grants = (rest[:, None, None] * p / p.sum((1, 2), keepdims=True)).astype(int)
    return assign_rows(
        labels, _add_rows(counts, sizes, lambda label, u, j: grants[label, u // kinds, j], 2), rng
    )


def femnist(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: PositiveInt = 5,
    scale: Positive = 1.0,
) -> Parts:
    """FedProx's FEMNIST, 200 clients: scale (LogNormal(4, 1) + 5) rows of consecutive classes.

    A client has equally many rows of its classes. Sizes are drawn again, at most 100 times, while a
    class has too few rows, because no image is given to two clients.

    classes_each: number of classes of each client.
    scale: factor of the sizes.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    check_classes_each(classes_each, len(sizes))
    if not 0 < scale < math.inf:
        raise BadInput(f"scale = {scale}: partition 'femnist' needs a number above 0, such as 0.35")
    owner = consecutive_classes(clients, len(sizes), classes_each)
    for _ in range(100):
        each = np.maximum(
            2, (scale * (rng.lognormal(4, 1, clients) + 5) / classes_each).astype(int)
        )
        counts = owner * each[:, None]
        if (counts.sum(0) <= sizes).all():
            return assign_rows(labels, counts, rng)
    raise BadInput(
        f"partition 'femnist' with scale = {scale} and {clients:,} clients asks for more rows "
        f"of a class than there are (the rarest has {sizes.min():,}); lower scale or clients"
    )


def _add_rows(
    counts: np.ndarray, sizes: np.ndarray, grant: Callable[[int, int, int], int], each: int
) -> np.ndarray:
    """Add grant(class, client, slot) rows client by client, but never use a class up."""
    counts, used = counts.copy(), counts.sum(0)
    for u in range(len(counts)):
        for j in range(each):
            label = (u + j) % len(sizes)
            more = grant(label, u, j)
            if used[label] + more < sizes[label]:
                counts[u, label] += more
                used[label] += more
    return counts


def _pfedme_counts(
    labels: np.ndarray, clients: int, rng: Rng, each: int, draws: str, legacy_seed: int
) -> np.ndarray:
    """10 rows of each own class, then floor((n - clients) q / sum q) + U{300..600} more.

    Up to 20 clients the latter are doubled. The uniform part shrinks where a class has fewer rows
    than the 5,000 of CIFAR-10's training part.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    kinds = len(sizes)
    check_classes_each(each, kinds)
    counts = consecutive_classes(clients, kinds, each) * 10
    check_counts(counts, labels)
    lognormal_draw, whole = _draws_of(draws, legacy_seed, rng)
    q = lognormal_draw(0, 2.0, (kinds, clients, each))
    shares = np.maximum(sizes - clients, 0)[:, None, None] * q / q.sum((1, 2), keepdims=True)
    legacy = random.Random(
        legacy_seed
    )  # the published script draws these from Python's own generator
    block = max(1, clients // kinds)

    def grant(label: int, u: int, j: int) -> int:
        extra = legacy.randint(300, 600) if draws == "legacy" else int(whole(300, 601))
        extra = int(extra * min(1, sizes[label] / 5000))
        return (int(shares[label, u // block, j]) + extra) * (2 if clients <= 20 else 1)

    return _add_rows(counts, sizes, grant, each)


def _check_legacy_seed(draws: str, legacy_seed: int, usual: int = 1) -> None:
    """Refuse a seed of the legacy generator where that draws nothing."""
    if draws != "legacy" and legacy_seed != usual:
        raise BadInput(
            f"legacy_seed = {legacy_seed} has no effect with draws = '{draws}': leave it out, or "
            "give draws = legacy"
        )


def _draws_of(
    draws: str, legacy_seed: int, rng: Rng, usual: int = 1
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Draws from LogNormal and of whole numbers, from the stream or numpy's legacy generator."""
    _check_legacy_seed(draws, legacy_seed, usual)
    if draws == "stream":
        return rng.lognormal, rng.integers
    if draws != "legacy":
        raise BadInput(
            f"draws = '{draws}' is not known" + suggest_name(draws, ("legacy", "stream"))
        )
    if not 0 <= legacy_seed < 2**32:
        raise BadInput(
            f"legacy_seed = {legacy_seed}: numpy's legacy generator takes 0 to {2**32 - 1:,}"
        )
    state = np.random.RandomState(legacy_seed)
    return state.lognormal, state.randint
