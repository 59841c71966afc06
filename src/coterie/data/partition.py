"""Splits: who gets which rows.

A split is a function `(labels, clients, rng, *, options) -> rows of each client`, registered in SPLITS. Most
published recipes are a table of counts [clients, classes]; `_hand_out` cuts the shuffled rows of each class
by it, so no row is ever dealt twice.
"""

import inspect
import math
import random
from collections.abc import Callable
from typing import Any, get_args

import numpy as np

from coterie.core.errors import BadInput, nearest

Rng = np.random.Generator
Parts = list[np.ndarray]


def iid(labels: np.ndarray, clients: int, rng: Rng) -> Parts:
    """Shuffle and cut in equal parts."""
    return np.array_split(rng.permutation(len(labels)), clients)


def classes(labels: np.ndarray, clients: int, rng: Rng, *, classes_each: int = 3, jitter: float = 0.0) -> Parts:
    """PersFL DS-1: `classes_each` classes a client, every class shared equally by equally many owners."""
    values, sizes = np.unique(labels, return_counts=True)
    _check_classes_each(classes_each, len(values))
    if not 0 <= jitter < 1:
        raise BadInput(f"jitter = {jitter}: give a number from 0 (equal shares) to less than 1")
    owner = _balanced(clients, len(values), classes_each, rng)
    counts = np.zeros(owner.shape, int)
    for label, size in enumerate(sizes):
        owners = np.flatnonzero(owner[:, label])
        if len(owners) == 0:  # fewer slots than classes
            continue
        if len(owners) > size:
            raise BadInput(
                f"class {values[label]} has {size:,} rows for {len(owners):,} owners; "
                f"lower clients = {clients:,} or classes_each = {classes_each}"
            )
        shares = 1 + jitter * rng.uniform(-1, 1, len(owners))
        counts[owners, label] = _cut(shares / shares.sum(), size) if jitter else _equal(size, len(owners))
    return _hand_out(labels, counts, rng)


def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    alpha: float = 0.4,
    rule: str = "cut",
    smallest: int = 10,
) -> Parts:
    """For each class q ~ Dir(alpha): "cut" at floor(cumsum(q) n) (CFL, UCFL) or "round" q n (PersFL DS-2).

    Drawn again, at most 100 times, until every client has `smallest` rows; 0 takes the first draw.
    """
    if not 0 < alpha < math.inf:
        raise BadInput(f"alpha = {alpha}: a Dirichlet split needs a number above 0, such as 0.4")
    if rule not in ("cut", "round"):
        raise BadInput(f"rule = '{rule}' is no Dirichlet rule" + nearest(rule, ("cut", "round")))
    if smallest * clients > len(labels):
        raise BadInput(
            f"{clients:,} clients of at least smallest = {smallest} rows need {smallest * clients:,} rows, "
            f"but there are {len(labels):,}: at most {len(labels) // smallest:,}; lower clients or smallest"
        )
    share = _cut if rule == "cut" else _round
    sizes = np.unique(labels, return_counts=True)[1]
    for _ in range(100 if smallest > 0 else 1):
        draw = rng.dirichlet(np.full(clients, alpha), len(sizes))
        counts = np.stack([share(q, size) for q, size in zip(draw, sizes, strict=True)], axis=1)
        if counts.sum(1).min() >= smallest:
            return _hand_out(labels, counts, rng)
    raise BadInput(
        f"alpha = {alpha} with {clients:,} clients left one with fewer than {smallest} rows in 100 draws; "
        "raise alpha, lower clients or lower smallest"
    )


def lognormal(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: int = 2,
    draws: str = "stream",
    legacy_seed: int = 1,
) -> Parts:
    """PersFL DS-3: consecutive classes, sizes from LogNormal(0, 2) as in pFedMe's CIFAR-10 generator."""
    counts = _pfedme_counts(labels, clients, rng, classes_each, draws, legacy_seed)
    return _hand_out(labels, counts, rng)


def pfedme_cifar(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    classes_each: int = 3,
    draws: str = "legacy",
    legacy_seed: int = 1,
) -> Parts:
    """pFedMe, CIFAR-10: 20 clients of 3 consecutive classes; legacy seed 1 gives 54,572 of 60,000 rows."""
    counts = _pfedme_counts(labels, clients, rng, classes_each, draws, legacy_seed)
    return _hand_out(labels, counts, rng)


def perfedavg(labels: np.ndarray, clients: int, rng: Rng, *, a: int | None = None) -> Parts:
    """PersFL DS-4, Per-FedAvg: half of the clients hold `a` rows of each class of the lower half.

    Each other client holds a/2 rows of one class of the lower half and 2a of one class of the upper half.
    The papers have a = 68 on CIFAR-10 and 196 on MNIST; None takes the largest that fits, at most 196.
    """
    if clients % 2:
        raise BadInput(f"clients = {clients:,}: split 'perfedavg' has two equal halves; give an even number")
    sizes = np.unique(labels, return_counts=True)[1]
    low, half = len(sizes) // 2, clients // 2
    if low == 0:
        raise BadInput("split 'perfedavg' needs at least two classes; use --split iid")
    shares = np.zeros((clients, len(sizes)))  # in units of a
    shares[:half, :low] = 1
    others = np.arange(half, clients)
    shares[others, rng.permutation(np.resize(rng.permutation(low), half))] = 0.5
    shares[others, rng.permutation(np.resize(low + rng.permutation(len(sizes) - low), half))] = 2
    if a is None:
        wanted = shares.sum(0)
        a = min(196, int((sizes[wanted > 0] / wanted[wanted > 0]).min()) // 2 * 2)
    if a < 2:
        raise BadInput(f"a = {a} rows a class: split 'perfedavg' needs at least 2; lower clients = {clients:,}")
    return _hand_out(labels, (shares * a).astype(int), rng)


def pairs(labels: np.ndarray, clients: int, rng: Rng, *, draws: str = "legacy", legacy_seed: int = 1) -> Parts:
    """PFML's MNIST: client u holds part u//5 of the digits 2u and 2u+1 (mod 10).

    A class is cut by drawing sizes from [R//(owners+1), R//2) of the R rows that remain; the last owner takes
    what is left. Legacy seed 1 gives 1,556 to 5,112 rows a client.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    step = len(sizes) // 2
    if len(sizes) % 2 or clients % step:
        raise BadInput(
            f"clients = {clients:,} with {len(sizes)} classes: split 'pairs' needs an even number of classes "
            f"and a multiple of {max(step, 1)} clients"
        )
    owners = clients // step
    whole = _source(draws, legacy_seed, rng)[1]
    cuts = np.zeros((len(sizes), owners), int)
    for label, left in enumerate(sizes):
        for part in range(owners - 1):
            if not 0 < left // (owners + 1) < left // 2:
                raise BadInput(f"split 'pairs' ran out of rows of class {label} for {owners} owners; lower clients")
            cuts[label, part] = whole(left // (owners + 1), left // 2)
            left -= cuts[label, part]
        cuts[label, -1] = left
    counts = np.zeros((clients, len(sizes)), int)
    for u in range(clients):
        for label in (2 * u % len(sizes), (2 * u + 1) % len(sizes)):
            counts[u, label] = cuts[label, u // step]
    return _hand_out(labels, counts, rng)


def ktpfl_1(labels: np.ndarray, clients: int, rng: Rng, *, many: int | None = None, few: int | None = None) -> Parts:
    """KT-pFL Non-IID_1: half of the clients has `many` rows of each lower class and `few` of each upper one.

    The other half has the reverse.

    None: 450 and 150 for 20 clients, 90 and 30 for 100, and less where a class has less than 6,000 rows.
    """
    if clients % 2:
        raise BadInput(f"clients = {clients:,}: split 'ktpfl-1' has two equal groups; give an even number")
    sizes = np.unique(labels, return_counts=True)[1]
    scale = 20 / clients * min(1, sizes.min() / 6000)
    many = int(450 * scale + 1e-9) if many is None else many
    few = int(150 * scale + 1e-9) if few is None else few
    lower, first = np.arange(len(sizes)) < len(sizes) // 2, np.arange(clients) < clients // 2
    counts = np.where(lower[None, :] == first[:, None], many, few)
    return _hand_out(labels, counts, rng)


def ktpfl_2(labels: np.ndarray, clients: int, rng: Rng, *, classes_each: int = 2, each: int | None = None) -> Parts:
    """KT-pFL Non-IID_2: every client draws 2 classes, `each` rows of both; None: 300, or what there is."""
    values, sizes = np.unique(labels, return_counts=True)
    _check_classes_each(classes_each, len(values))
    counts = np.zeros((clients, len(sizes)), int)
    for u in range(clients):
        counts[u, rng.choice(len(sizes), classes_each, replace=False)] = 1
    owners = np.maximum(counts.sum(0), 1)
    each = min(300, int((sizes // owners).min())) if each is None else each
    return _hand_out(labels, counts * each, rng)


def powerlaw(labels: np.ndarray, clients: int, rng: Rng, *, draws: str = "stream", legacy_seed: int = 0) -> Parts:
    """FedProx's MNIST, 1,000 clients: 5 rows of classes u and u+1 (mod 10), then LogNormal(0, 2) shares."""
    sizes = np.unique(labels, return_counts=True)[1]
    kinds = len(sizes)
    if clients % kinds:
        raise BadInput(
            f"clients = {clients:,}: split 'powerlaw' gives every class equally many owners; give a multiple of {kinds}"
        )
    counts = _consecutive(clients, kinds, 2) * 5
    _check_room(counts, labels)
    rest = sizes - counts.sum(0)
    p = _source(draws, legacy_seed, rng)[0](0, 2.0, (kinds, clients // kinds, 2))
    grants = (rest[:, None, None] * p / p.sum((1, 2), keepdims=True)).astype(int)
    return _hand_out(labels, _grant(counts, sizes, lambda label, u, j: grants[label, u // kinds, j], 2), rng)


def femnist(labels: np.ndarray, clients: int, rng: Rng, *, classes_each: int = 5, scale: float = 1.0) -> Parts:
    """FedProx's FEMNIST, 200 clients: scale (LogNormal(4, 1) + 5) rows, equally of 5 consecutive classes.

    Sizes are drawn again, at most 100 times, while a class has too few rows: no image is dealt twice.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    _check_classes_each(classes_each, len(sizes))
    if not 0 < scale < math.inf:
        raise BadInput(f"scale = {scale}: split 'femnist' needs a number above 0, such as 0.35")
    owner = _consecutive(clients, len(sizes), classes_each)
    for _ in range(100):
        each = np.maximum(2, (scale * (rng.lognormal(4, 1, clients) + 5) / classes_each).astype(int))
        counts = owner * each[:, None]
        if (counts.sum(0) <= sizes).all():
            return _hand_out(labels, counts, rng)
    raise BadInput(
        f"split 'femnist' with scale = {scale} and {clients:,} clients asks for more rows of a class than "
        f"there are (the rarest has {sizes.min():,}); lower scale or clients"
    )


def user(labels: np.ndarray, clients: int | None, rng: Rng, *, users: np.ndarray | None, smallest: int = 1) -> Parts:
    """The natural clients in order of their number, those with fewer than `smallest` rows left out.

    With fewer `clients` than that a random choice of them; None takes all.
    """
    if users is None:
        raise BadInput("split 'user' needs data with natural clients; use another split or a client column")
    order = np.argsort(users, kind="stable")  # a client's rows keep their order, which may be time
    starts = np.flatnonzero(np.diff(users[order])) + 1
    parts = [part for part in np.split(order, starts) if len(part) >= smallest]
    clients = len(parts) if clients is None else clients
    if clients > len(parts) or not parts:
        raise BadInput(
            f"clients = {clients:,}, but the data have {len(parts):,} natural clients of at least {smallest} "
            "rows; lower clients or smallest"
        )
    chosen = np.sort(rng.choice(len(parts), clients, replace=False))
    return [parts[i] for i in chosen]


SPLITS: dict[str, Callable[..., Parts]] = {
    "iid": iid,
    "classes": classes,
    "dirichlet": dirichlet,
    "lognormal": lognormal,
    "perfedavg": perfedavg,
    "pairs": pairs,
    "pfedme-cifar": pfedme_cifar,
    "ktpfl-1": ktpfl_1,
    "ktpfl-2": ktpfl_2,
    "powerlaw": powerlaw,
    "femnist": femnist,
    "user": user,
}
USUAL_CLIENTS = {"lognormal": 10, "perfedavg": 10, "powerlaw": 1000, "femnist": 200}  # 20 elsewhere


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """The options of a split: the keyword arguments of its function that have a default."""
    if name not in SPLITS:
        raise BadInput(f"there is no split '{name}'" + nearest(name, SPLITS))
    found = inspect.signature(SPLITS[name]).parameters.values()
    return {p.name: p for p in found if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def deal(
    name: str,
    labels: np.ndarray,
    clients: int | None,
    rng: Rng,
    users: np.ndarray | None = None,
    **options: Any,
) -> Parts:
    """Run the split `name` with checked options: disjoint int64 row arrays, none of them empty."""
    valid = options_of(name)
    for key, value in options.items():
        if key not in valid:
            raise BadInput(f"split '{name}' has no option '{key}'" + nearest(key, valid))
        if not _fits(value, valid[key].annotation):
            kind = " or ".join(t.__name__ for t in _kinds(valid[key].annotation))
            raise BadInput(f"option {key} = {value!r} of split '{name}' must be {kind}")
    if name == "user":
        options["users"] = users
    else:
        clients = USUAL_CLIENTS.get(name, 20) if clients is None else clients
        if name != "iid" and labels.dtype.kind not in "iu":
            raise BadInput(f"split '{name}' needs class labels, but these data have none; use iid or user")
    if clients is not None and not 1 <= clients <= len(labels):
        raise BadInput(f"clients = {clients:,}, but there are {len(labels):,} rows to deal; give 1 to {len(labels):,}")
    parts = SPLITS[name](labels, clients, rng, **options)
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise BadInput(f"client {client} got no rows from split '{name}'; use fewer clients or a milder split")
    return [part.astype(np.int64) for part in parts]


def groups_of(name: str, clients: int, kinds: int) -> np.ndarray:
    """[clients] the class group a recipe puts each client in, else zeros; `kinds` classes occur."""
    u = np.arange(clients)
    if name in ("perfedavg", "ktpfl-1"):
        return (u >= clients // 2).astype(np.int64)
    if name == "pairs":
        return u % (kinds // 2)
    if name in ("lognormal", "pfedme-cifar", "powerlaw", "femnist"):
        return u % kinds
    return np.zeros(clients, np.int64)


def _kinds(annotation: Any) -> tuple[type, ...]:
    return tuple(get_args(annotation)) or (annotation,)


def _fits(value: object, annotation: Any) -> bool:
    kinds = _kinds(annotation)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _check_classes_each(classes_each: int, kinds: int) -> None:
    if not 1 <= classes_each <= kinds:
        raise BadInput(f"classes_each = {classes_each}, but the rows have {kinds} classes; give 1 to {kinds}")


def _check_room(counts: np.ndarray, labels: np.ndarray) -> None:
    """Refuse counts [clients, classes] that ask for more rows of a class than there are."""
    values, sizes = np.unique(labels, return_counts=True)
    if counts.min() < 0:
        raise BadInput("a split cannot hand out fewer than 0 rows; give counts of 1 or more")
    for value, size, asked in zip(values, sizes, counts.sum(0), strict=True):
        if asked > size:
            raise BadInput(
                f"class {value} has {size:,} rows, but the split asks for {asked:,}; "
                "use fewer clients, smaller counts or a larger data set"
            )


def _hand_out(labels: np.ndarray, counts: np.ndarray, rng: Rng) -> Parts:
    """Deal counts[client, class] rows of each class, shuffled, no row twice."""
    _check_room(counts, labels)
    parts: list[Parts] = [[] for _ in counts]
    for label, value in enumerate(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == value))
        ends = np.cumsum(counts[:, label])
        for u in np.flatnonzero(counts[:, label]):
            parts[u].append(rows[ends[u] - counts[u, label] : ends[u]])
    return [np.concatenate(part) if part else np.empty(0, int) for part in parts]


def _equal(size: int, shares: int) -> np.ndarray:
    """`size` rows in parts that differ by one row at most."""
    return size // shares + (np.arange(shares) < size % shares)


def _cut(q: np.ndarray, size: int) -> np.ndarray:
    """Cut at floor(cumsum(q) size): every row goes to someone."""
    ends = np.minimum((np.cumsum(q)[:-1] * size).astype(int), size)
    return np.diff(np.concatenate([[0], ends, [size]]))


def _round(q: np.ndarray, size: int) -> np.ndarray:
    """round(q size) rows each, the last ones taking what is left when the class runs dry."""
    ends = np.minimum(np.cumsum(np.round(q * size).astype(int)), size)
    return np.diff(np.concatenate([[0], ends]))


def _balanced(clients: int, kinds: int, each: int, rng: Rng) -> np.ndarray:
    """[clients, kinds] bool: `each` classes a client; two classes differ by one owner at most."""
    owner = np.zeros((clients, kinds), bool)
    left = rng.permutation(_equal(clients * each, kinds))
    for u in range(clients):
        chosen = np.lexsort((rng.random(kinds), -left))[:each]  # the neediest classes, ties at random
        owner[u, chosen] = True
        left[chosen] -= 1
    return owner


def _consecutive(clients: int, kinds: int, each: int) -> np.ndarray:
    """[clients, kinds] 1 where client u owns the class: u, u+1, ... (mod kinds)."""
    return ((np.arange(kinds)[None, :] - np.arange(clients)[:, None]) % kinds < each).astype(int)


def _grant(counts: np.ndarray, sizes: np.ndarray, grant: Callable[[int, int, int], int], each: int) -> np.ndarray:
    """Add grant(class, client, slot) rows client by client, skipping a grant that would use a class up."""
    counts, used = counts.copy(), counts.sum(0)
    for u in range(len(counts)):
        for j in range(each):
            label = (u + j) % len(sizes)
            more = grant(label, u, j)
            if used[label] + more < sizes[label]:
                counts[u, label] += more
                used[label] += more
    return counts


def _pfedme_counts(labels: np.ndarray, clients: int, rng: Rng, each: int, draws: str, legacy_seed: int) -> np.ndarray:
    """10 rows of each own class, then floor((n - clients) q / sum q) + U{300..600}, doubled up to 20 clients.

    The uniform part shrinks where a class has fewer rows than the 5,000 of CIFAR-10's training part.
    """
    sizes = np.unique(labels, return_counts=True)[1]
    kinds = len(sizes)
    _check_classes_each(each, kinds)
    counts = _consecutive(clients, kinds, each) * 10
    _check_room(counts, labels)
    lognormal_draw, whole = _source(draws, legacy_seed, rng)
    q = lognormal_draw(0, 2.0, (kinds, clients, each))
    shares = np.maximum(sizes - clients, 0)[:, None, None] * q / q.sum((1, 2), keepdims=True)
    legacy = random.Random(legacy_seed)  # the published script draws these from Python's own generator
    block = max(1, clients // kinds)

    def grant(label: int, u: int, j: int) -> int:
        extra = legacy.randint(300, 600) if draws == "legacy" else int(whole(300, 601))
        extra = int(extra * min(1, sizes[label] / 5000))
        return (int(shares[label, u // block, j]) + extra) * (2 if clients <= 20 else 1)

    return _grant(counts, sizes, grant, each)


def _source(draws: str, legacy_seed: int, rng: Rng) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(lognormal, whole number in [low, high)) from the stream, or from numpy's legacy generator."""
    if draws == "stream":
        return rng.lognormal, rng.integers
    if draws != "legacy":
        raise BadInput(f"draws = '{draws}' is not known" + nearest(draws, ("legacy", "stream")))
    if not 0 <= legacy_seed < 2**32:
        raise BadInput(f"legacy_seed = {legacy_seed}: numpy's legacy generator takes 0 to {2**32 - 1:,}")
    state = np.random.RandomState(legacy_seed)
    return state.lognormal, state.randint
