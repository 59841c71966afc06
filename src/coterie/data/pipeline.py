"""From a data set to a federation: rows are chosen, partitioned over clients, cut and stored."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from coterie.core.errors import BadInput, suggest_name
from coterie.core.files import path_exists
from coterie.core.options import check_table
from coterie.core.rng import stream, streams
from coterie.core.task import TASKS, choose_task
from coterie.data.arrays import as_tensor
from coterie.data.client_rows import ClientRows
from coterie.data.dataset import Dataset, Public
from coterie.data.federation import Federation
from coterie.data.inspection import find_traps
from coterie.data.lazy_rows import LazyRows, RowGenerator
from coterie.data.messages import log, warn
from coterie.data.newcomers import keep_out, select_newcomers
from coterie.data.options import DataOptions, check_data_options, check_values
from coterie.data.partition import registry
from coterie.data.partition.copies import find_copies, find_holders
from coterie.data.partition.cuts import (
    BY_COLUMN,
    Cuts,
    Shares,
    cut_as_published,
    cut_at_points,
    cut_by_time,
    cut_groups,
    cut_rows,
    cuts_of,
    split_validation,
)
from coterie.data.partition.minimum_rows import check_parts, has_all_parts
from coterie.data.prepare.preparation import (
    Preparation,
    add_client_scale,
    array_columns_of,
    fit_preparation,
    prepare_rows,
)
from coterie.data.prepare.public import HELD_OUT, load_public_images, public_of
from coterie.data.prepare.scaling import FEATURES, POOLED, ImageScale, affine_of, default_scale_of
from coterie.data.prepare.transforms import (
    EarlierInputs,
    InputFunction,
    StoredRows,
    augment_once,
    store_rows,
    transforms_of,
)
from coterie.data.read import catalog, user_data
from coterie.data.read.columns import CATEGORY, DATE
from coterie.data.read.file_rows import UserData
from coterie.data.read.index_files import is_index_file, read_row_owners
from coterie.data.target import (
    Label,
    Target,
    check_label,
    default_target_of,
    fit_target,
    guess_task,
)

SHOWN = 5  # names of clients in a line
LAZY_OPTIONS = ("validation", "select", "test", "newcomers")  # choices that need no row


class Cutter(NamedTuple):
    """How the rows of clients are cut in parts."""

    how: str  # one of CUTS
    shares: Shares
    by: np.ndarray  # [n] times or groups of all rows, or which are equal, where they decide
    # the rows of each client in, its parts out; a draft has the counts only, nothing is shuffled
    cut: Callable[[ClientRows, bool], Cuts]
    apart: int = 0  # clients most of whose rows are equal, and are cut as different ones


class PreparedRows(NamedTuple):
    """How rows become inputs, for later use and for use here."""

    preparation: Preparation
    inputs: InputFunction


class RowSelection(NamedTuple):
    """Which rows of a data set serve what."""

    pool: np.ndarray  # all that scaling may learn from
    dealt: np.ndarray  # those of the pool that clients get
    held_out: np.ndarray  # those of the pool that are public
    shared: np.ndarray  # everyone's test part; none where every client has a test part of its own


class ClientPartitions(NamedTuple):
    """What the split made of the rows."""

    split: str
    parts: ClientRows  # rows of each client
    natural: bool  # whether the clients are those of the data
    users: list[int]  # the number of each client in the data, if natural
    names: list[str]


def build_federation(
    dataset: str | Path | UserData | Dataset = "digits",
    partition: str | None = None,
    num_clients: int | None = None,
    seed: int = 0,
    *,
    folder: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    earlier: Federation | None = None,
    **choices: Any,
) -> Federation:
    """Load a data set, partition its rows over clients and cut each client's rows in four parts.

    dataset: a registered name, a file or folder of one's own, or data at hand; `data_options` are
        what its loader takes, `folder` is where its files lie.
    partition: a registered name, with its `options`; None is the default one of the data.
    num_clients: None is what the partition has by default (20 for most), or all natural clients.
    earlier: a federation of the same data at hand, as of another seed; where the inputs are the
        same, its own are taken.
    choices: the fields of Choices, such as validation = 0.
    """
    chosen = check_table(DataOptions(**choices))
    maker = _find_generator(
        dataset, partition, num_clients, chosen, options or {}, data_options or {}
    )
    if maker is not None:
        return _build_lazy_federation(str(dataset), maker, chosen, seed)
    whole = read_data(dataset, folder, data_options or {})
    if is_index_file(partition):
        whole = _assign_owners(whole, str(partition), options or {}, folder)
        partition = "user"
        options = None
    base, table = whole.data, whole.columns is not None
    check_data_options(whole, chosen)
    check_values(base, table)
    rows = _select_rows(base, chosen, seed)
    chosen = _guess_language(whole, chosen)
    base = _label_as_numbers(whole, chosen.task)
    if chosen.augmented_once:
        base = base._replace(x=augment_once(base.x, stream(seed, "augmented")))
    whole = whole._replace(data=base)
    split = partition or registry.default_partition_of(base.users is not None, base.classes > 0)
    cutter = _build_cutter(whole, split, rows.shared, chosen, seed)
    dealt_rows, left_out = _drop_tiny_clients(whole, rows.dealt, split, cutter, chosen.validation)
    dealt = _partition_rows(whole, dealt_rows, split, num_clients, seed, options or {})
    cuts = cutter.cut(dealt.parts, False)
    if cutter.how == "shuffle" and len(cutter.by):
        _report_copies(base.name, dealt.parts, cutter)
    check_parts(cuts, dealt.names, cutter.shares, cutter.how, dealt.natural)
    late = select_newcomers(chosen.newcomers, len(dealt.names), seed)
    _log_newcomers(base.name, [dealt.names[i] for i in late], len(dealt.names))
    stay = np.setdiff1d(np.arange(len(dealt.names)), late)
    target = _fit_label_target(whole, split, cuts.train.only(stay).concatenate(), chosen)
    if target is not None:
        base = _scale_target(whole, target)
        whole = whole._replace(data=base)
        check_data_options(whole, chosen)
    if chosen.loss:
        target = (target or default_target_of(base.classes))._replace(loss=chosen.loss)
    theirs = dealt.parts.only(late).concatenate()
    pool = np.setdiff1d(rows.pool, theirs) if len(late) else rows.pool
    prepared = _prepare_rows(whole, pool, cuts, dealt.names, chosen, stay)
    if target is not None and TASKS[target.task].has_tokens:
        base = base._replace(y=prepared.inputs.of(np.arange(len(base.y))))
    made = _find_earlier(earlier, prepared.preparation)
    stored, groups = _store_rows(base, dealt, cuts, prepared.inputs, chosen, seed, made)
    held, kept = stored.cuts.validation, ClientRows.none(len(dealt.names))
    if chosen.select:
        held, kept = split_validation(held, stored.rows, base.y, cutter.how, cutter.by)
    federation = Federation(
        name=base.name,
        x=_reuse_tensor(stored.x, earlier),
        y=as_tensor(stored.y),
        classes=base.classes,
        train=stored.cuts.train,
        validation=held,
        test=stored.cuts.test,
        groups=groups,
        names=dealt.names,
        public=_load_public(base, rows.held_out, prepared, chosen, seed, folder),
        truth=_truth_of(base, dealt),
        table=None if base.table is None else as_tensor(base.table),
        labels=whole.labels if whole.labels and base.classes else None,
        rows=stored.rows,
        place=whole.place,
        preparation=prepared.preparation._replace(left_out=left_out, target=target),
        select=kept,
    )
    return keep_out(federation, late)


def _find_generator(
    data: str | Path | UserData | Dataset,
    split: str | None,
    clients: int | None,
    chosen: DataOptions,
    options: Mapping[str, Any],
    data_options: Mapping[str, Any],
) -> RowGenerator | None:
    """What makes the rows of a data set client by client, if nothing needs all of them at once."""
    source = catalog.DATASETS.get(data) if isinstance(data, str) else None
    if (
        source is None
        or source.lazily is None
        or split not in (None, "user")
        or any(options.values())
    ):
        return None
    plain = {k: v for k, v in chosen._asdict().items() if k not in LAZY_OPTIONS}
    if any(DataOptions._field_defaults[word] != value for word, value in plain.items()):
        return None
    known = inspect.signature(source.lazily).parameters
    if set(data_options) - set(known):
        return None
    maker = source.lazily(**data_options)
    return maker if maker is None or clients in (None, len(maker.counts)) else None


def _build_lazy_federation(
    name: str, maker: RowGenerator, chosen: DataOptions, seed: int
) -> Federation:
    """The federation of clients whose rows are made when they are asked for: a span of rows each,
    cut in order.
    """
    source, n = catalog.DATASETS[name], len(maker.counts)
    names = [str(i) for i in range(n)]
    shares = Shares(chosen.validation, chosen.test)
    cuts = cut_at_points(ClientRows.pack(None, maker.counts), shares, None)
    check_parts(cuts, names, shares, "order", natural=True)
    held, kept = cuts.validation, ClientRows.none(n)
    if chosen.select:
        held, kept = split_validation(held, np.zeros(0), np.zeros(0), source.cut, np.zeros(0))
    late = select_newcomers(chosen.newcomers, n, seed)
    _log_newcomers(name, [names[i] for i in late], n)
    federation = Federation(
        name=name,
        x=cast(torch.Tensor, LazyRows(maker, labels=False)),
        y=cast(torch.Tensor, LazyRows(maker, labels=True)),
        classes=maker.classes,
        train=cuts.train,
        validation=held,
        test=cuts.test,
        groups=np.zeros(n, np.int64),
        names=names,
        preparation=Preparation(scale="none"),
        select=kept,
    )
    return keep_out(federation, late)


def _log_newcomers(name: str, late: list[str], clients: int) -> None:
    """One line on who is kept out of training."""
    if late:
        shown = ", ".join(late[:SHOWN]) + (", ..." if len(late) > SHOWN else "")
        log(
            f"{name}: {len(late):,} of {clients:,} clients are newcomers, kept out of training: "
            f"{shown}"
        )


def _guess_language(whole: UserData, chosen: DataOptions) -> DataOptions:
    """The choices, with the task of a text that is its own label; refused where there is none."""
    own = whole.columns[0].name if whole.is_text and whole.columns else ""
    same = bool(own) and whole.label is not None and whole.label.columns == (own,)
    asked = chosen.task is not None and TASKS[chosen.task].has_tokens
    if asked and not same:
        raise BadInput(
            f"task = {chosen.task} learns the next word of texts: name their column with --text, "
            "and leave out --label"
        )
    if same and chosen.task is not None and not asked:
        raise BadInput(
            f"'{own}' is both text and label, so task = {chosen.task} cannot be: name another "
            "--label"
        )
    if same and not whole.texts.folder:
        raise BadInput(
            f"'{own}' is both text and label, which a pretrained language model learns: give "
            "--model hf:FOLDER"
        )
    language = next(name for name, task in TASKS.items() if task.has_tokens)
    return chosen._replace(task=language) if same else chosen


def _label_as_numbers(whole: UserData, task: str | None) -> Dataset:
    """The data with a label that is asked for as numbers, which no split can take for classes."""
    if task is not None and TASKS[task].has_tokens:
        return whole.data._replace(y=np.zeros(len(whole.data.y), np.int64), classes=0)
    if task is None or not TASKS[task].is_number:
        return whole.data
    if whole.label is None or whole.label.numbers is None:
        return whole.data
    return whole.data._replace(y=whole.label.numbers.astype(np.float32), classes=0)


def _fit_label_target(
    whole: UserData, split: str, train: np.ndarray, chosen: DataOptions
) -> Target | None:
    """What the label is learnt as, by its training rows; None: the data set says it itself."""
    base, label, balanced = whole.data, whole.label, chosen.class_weights == "balanced"
    if label is None:
        return _fit_dataset_target(base, train, chosen.task, balanced)
    reading = guess_task(label, train, chosen.task, base.classes)
    number = TASKS[reading.task].is_number
    if reading.said:  # numbers that are no classes are news to whoever expected classes
        (warn if number else log)(f"{base.name}: {reading.said}")
    if number and registry.PARTITIONERS[split].labels and base.classes:
        raise BadInput(
            f"{base.name}: {reading.said}, but partition '{split}' goes by class; "
            "use --partition iid"
        )
    check_label(label, reading.task, base.classes, whole.place, base.name)
    return fit_target(label, reading.task, base.y, train, base.classes, balanced)


def _fit_dataset_target(
    base: Dataset, train: np.ndarray, task: str | None, balanced: bool
) -> Target | None:
    """The target of a data set whose task is known; only classes may have weights."""
    known = [t.name for t in TASKS.values() if t.is_plain and t.has_classes]
    if task and not (base.classes and task in known and TASKS[task].fits(base.classes)):
        has = f"{base.classes} classes" if base.classes else "no label column"
        raise BadInput(
            f"task = {task}, but '{base.name}' has {has}; --task is for data of your own"
        )
    if not base.classes:
        if balanced:
            raise BadInput(f"class_weights = balanced, but '{base.name}' has no classes")
        known_task = catalog.source_of(base.name).task
        return Target(known_task) if known_task else None
    if task is None and not balanced:
        return None
    label = Label((), None)
    task = task or choose_task(base.classes).name
    return fit_target(label, task, base.y, train, base.classes, balanced)


def _scale_target(whole: UserData, target: Target) -> Dataset:
    """The data with targets as a network learns them."""
    numbers = None if whole.label is None else whole.label.numbers
    if not TASKS[target.task].has_numbers or numbers is None:
        return whole.data
    return whole.data._replace(y=target.scale(numbers), classes=0)


def read_data(
    data: str | Path | UserData | Dataset, folder: str | Path | None, options: Mapping[str, Any]
) -> UserData:
    """A data set by name, a user's own file or folder, or arrays already at hand."""
    if isinstance(data, (UserData, Dataset)):
        if options:
            raise BadInput(
                f"data_options {', '.join(options)} belong to a named data set or a file; "
                "remove them"
            )
        return data if isinstance(data, UserData) else UserData(data, list(data.clients), [])
    if data in catalog.DATASETS or not (user_data.is_path(data) or path_exists(Path(data))):
        place = None if folder is None else Path(folder)
        found = catalog.load_dataset(str(data), place, **options)
        return UserData(found, list(found.clients), [])
    known = inspect.signature(user_data.read_user_data).parameters.values()
    valid = [p.name for p in known if p.kind is p.KEYWORD_ONLY]
    for key in options:
        if key not in valid:
            raise BadInput(f"your own data have no option '{key}'" + suggest_name(key, valid))
    whole = user_data.read_user_data(data, **options)
    for line in (*whole.remarks, *_describe_columns(whole), *find_traps(whole)):
        warn(f"{whole.data.name}: {line}")
    return whole


def _assign_owners(
    whole: UserData, file: str, options: Mapping[str, Any], folder: str | Path | None
) -> UserData:
    """The data with the clients, and the parts if any, of an index file."""
    if any(value is not None for value in options.values()):
        raise BadInput(f"split = '{file}' is an index file and has no options; remove them")
    base = whole.data
    kept = None if whole.place is None else whole.place.kept
    rows = len(base.y) if whole.place is None else sum(whole.place.sizes)
    found = read_row_owners(file, rows, base.name, folder)
    if kept is not None:  # it counts all rows of the file
        part = None if found.part is None else found.part[kept]
        found = found._replace(owner=found.owner[kept], part=part)
    free = int((found.owner < 0).sum())
    if free:
        log(f"{base.name}: {free:,} of {len(base.y):,} rows are in no client of {file}: not used")
    train = base.train if found.part is None else found.part == 0
    base = base._replace(users=found.owner, parts=found.part, train=train)
    return whole._replace(data=base, clients=found.clients)


def _describe_columns(whole: UserData) -> list[str]:
    """One line where a table holds more than plain numbers, because these are made inputs too."""
    kinds = [column.kind for column in whole.columns or []]
    gaps = int(np.isnan(whole.data.x).any(0).sum()) if kinds else 0
    found = {
        "texts": kinds.count(CATEGORY),
        "dates": kinds.count(DATE),
        "missing cells": gaps,
    }
    words = [f"{count:,} with {what}" for what, count in found.items() if count]
    if not words:
        return []
    return [f"of {len(kinds):,} columns, {', '.join(words)}; `coterie data` says what they become"]


def _select_rows(base: Dataset, chosen: DataOptions, seed: int) -> RowSelection:
    """The rows that are partitioned, and those that are public or everyone's test part instead."""
    shared = np.flatnonzero(~base.train)[: chosen.shared_test]
    in_pool = np.full(len(base.y), True) if chosen.pool == "all" else base.train.copy()
    in_pool[shared] = False
    if base.users is not None:
        in_pool &= base.users >= 0  # an index file need not list every row
    pool = rest = np.flatnonzero(in_pool)
    held_out, wanted = np.empty(0, np.int64), chosen.public_rows
    if chosen.public == HELD_OUT:
        if wanted is None or not 0 < wanted < len(pool):
            raise BadInput(
                f"public = '{HELD_OUT}' needs public_rows of 1 to {len(pool) - 1:,}, not {wanted}"
            )
        held_out = np.sort(stream(seed, "public").choice(pool, wanted, replace=False))
        rest = np.setdiff1d(pool, held_out, assume_unique=True)
    if chosen.rows is not None:
        if not 0 < chosen.rows <= len(rest):
            raise BadInput(
                f"rows = {chosen.rows:,}, but '{base.name}' has {len(rest):,} rows "
                "to choose from; lower rows"
            )
        rest = np.sort(stream(seed, "rows").choice(rest, chosen.rows, replace=False))
    return RowSelection(pool, rest, held_out, shared)


def _partition_rows(
    whole: UserData,
    rows: np.ndarray,
    split: str,
    clients: int | None,
    seed: int,
    options: Mapping[str, Any],
) -> ClientPartitions:
    """The rows of each client, and what it is called."""
    base = whole.data
    if clients is not None and clients > len(rows):
        raise BadInput(
            f"num_clients = {clients:,}, but '{base.name}' has {len(rows):,} rows to partition: "
            f"at most {len(rows) // 10:,} clients of 10 rows; "
            "lower --num-clients or use a larger data set"
        )
    usual = catalog.source_of(base.name).split_options.get(split, {})
    given = {**usual, **{k: v for k, v in options.items() if v is not None}}
    owners = None if base.users is None else base.users[rows]
    found = registry.partition_rows(
        split, base.y[rows], clients, stream(seed, "split"), owners, **given
    )
    parts = found.map_rows(lambda places: rows[places])
    natural = base.users is not None and registry.PARTITIONERS[split].natural
    users = list(range(len(parts)))
    if base.users is not None and natural:
        users = base.users[parts.firsts()].tolist()
    names = [whole.clients[u] if natural and whole.clients else str(u) for u in users]
    return ClientPartitions(split=split, parts=parts, natural=natural, users=users, names=names)


def _build_cutter(
    whole: UserData, split: str, shared: np.ndarray, chosen: DataOptions, seed: int
) -> Cutter:
    """Cuts the rows of each client in three parts; the shared rows are the test part if any."""
    base = whole.data
    natural = base.users is not None and split in registry.PARTITIONERS
    natural = natural and registry.PARTITIONERS[split].natural
    usual = catalog.source_of(base.name).cut if natural else "shuffle"
    how, apart = chosen.cut or (usual if base.parts is None else "published"), 0
    shares = Shares(chosen.validation, 0.0 if chosen.shared_test else chosen.test)
    by = user_data.cut_numbers_of(whole, how) if how in BY_COLUMN else np.zeros(0)
    if how == "published":
        by, shares = _find_published_parts(base, chosen)
    if how == "shuffle" and whole.columns is not None:
        by, apart = find_copies(base.x, base.y, base.users if natural else None)

    def cut(parts: ClientRows, draft: bool) -> Cuts:
        rngs = streams(seed, "parts", range(len(parts)))
        if how == "groups":
            cuts = cuts_of(cut_groups(parts, by, shares, rngs))
        elif how == "time":
            cuts = cuts_of([cut_by_time(part, by, shares) for part in parts])
        elif how == "runs":
            each = zip(parts, rngs, strict=True)
            cuts = cuts_of([cut_rows(part, base.y, how, *shares, rng) for part, rng in each])
        elif how == "published":
            each = zip(parts, rngs, strict=True)
            own = 0.0 if (by == 1).any() else shares.validation
            cuts = cuts_of([cut_as_published(part, by, own, rng) for part, rng in each])
        else:
            mixed = how == "shuffle" and not draft
            cuts = cut_at_points(parts, shares, rngs if mixed else None, by if len(by) else None)
        none = np.zeros(len(parts), np.int64)
        everyones = ClientRows(shared, none, none + len(shared))
        return cuts._replace(test=everyones) if len(shared) else cuts

    return Cutter(how, shares, by, cut, apart)


def _report_copies(name: str, parts: ClientRows, cutter: Cutter) -> None:
    """One line on rows that stay together, and one where rows are equal by chance."""
    count = find_holders(parts, cutter.by)[1]
    if cutter.apart:
        who = f"{cutter.apart:,} clients" if cutter.apart > 1 else "a client"
        log(f"{name}: most rows of {who} equal another one, as by chance: they are cut apart")
    if count:
        log(
            f"{name}: {count:,} rows are copies of a row of the same client: kept in one part with "
            "it"
        )


def _find_published_parts(base: Dataset, chosen: DataOptions) -> tuple[np.ndarray, Shares]:
    """[n] the published part of every row, and the shares that are left to choose."""
    parts = np.where(base.train, 0, 2) if base.parts is None else base.parts
    if not (parts == 2).any():
        raise BadInput(
            f"cut = 'published', but '{base.name}' has no published test rows; name its parts with "
            "--part-column, or leave --cut out"
        )
    usual = DataOptions._field_defaults
    held = bool((parts == 1).any())
    for word, given in (("test", True), ("validation", held)):
        if given and getattr(chosen, word) != usual[word]:
            raise BadInput(
                f"{word} = {getattr(chosen, word):g} has no effect, as '{base.name}' has published "
                f"{word} rows: leave it out, or use --cut shuffle"
            )
    if chosen.validation and not held:
        log(
            f"{base.name}: test rows are the published ones; {chosen.validation:.0%} of each "
            "client's published training rows are kept for validation and choice"
        )
    return parts, Shares(chosen.validation, chosen.test)


def _drop_tiny_clients(
    whole: UserData, rows: np.ndarray, split: str, cutter: Cutter, validation: float
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rows of natural clients that have enough for every part, and who is left out.

    Only counts, and what rows are cut by, decide; if nobody has enough, nobody is left out here.
    """
    users = whole.data.users
    if users is None or not registry.PARTITIONERS[split].natural:
        return rows, ()
    parts = ClientRows.by_owner(rows, users[rows])
    good = has_all_parts(cutter.cut(parts, True), validation)
    if good.all() or not good.any():
        return rows, ()
    numbers = users[parts.firsts()[~good]].tolist()
    names = tuple(whole.clients[u] if whole.clients else str(u) for u in numbers)
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    warn(
        f"{whole.data.name}: {len(names):,} of {len(parts):,} clients are left out, as they have "
        f"too few rows for a train, a validation and a test part: {shown}"
    )
    return rows[~np.isin(users[rows], numbers)], names


def _find_earlier(earlier: Federation | None, now: Preparation) -> EarlierInputs | None:
    """The inputs of an earlier federation, if they are images made in the same way."""
    known = earlier.preparation if earlier else None
    if earlier is None or known is None or earlier.rows is None or now.columns:
        return None
    before = known._replace(left_out=(), target=None)
    return EarlierInputs(earlier.x.numpy(), earlier.rows) if before == now else None


def _reuse_tensor(x: np.ndarray, earlier: Federation | None) -> torch.Tensor:
    """An array as a tensor; that of an earlier federation, if it is the same memory."""
    found = as_tensor(x)
    if earlier is None or found.data_ptr() != earlier.x.data_ptr():
        return found
    return earlier.x if found.shape == earlier.x.shape else found


def _store_rows(
    base: Dataset,
    dealt: ClientPartitions,
    cuts: Cuts,
    inputs: InputFunction,
    chosen: DataOptions,
    seed: int,
    earlier: EarlierInputs | None,
) -> tuple[StoredRows, np.ndarray]:
    """Inputs and labels as the clients see them, where each finds its own, and their groups."""
    clients = len(dealt.parts)
    if clients < chosen.rotate * chosen.permute:
        raise BadInput(
            f"{clients} clients cannot form rotate x permute = "
            f"{chosen.rotate * chosen.permute:,} groups; raise --num-clients"
        )
    changes = transforms_of(base, seed, chosen.rotate, chosen.permute)
    groups = np.arange(clients) * len(changes) // clients
    stored = store_rows(base, cuts, groups, changes, inputs, earlier)
    if len(changes) == 1:
        kinds = len(np.unique(base.y[dealt.parts.concatenate()])) if base.classes else 0
        groups = registry.groups_of(dealt.split, clients, kinds)
    return stored, groups


def _prepare_rows(
    whole: UserData,
    pool: np.ndarray,
    cuts: Cuts,
    names: list[str],
    chosen: DataOptions,
    stay: np.ndarray,  # clients that are trained
) -> PreparedRows:
    """How rows become inputs; all that is fitted is fitted on training rows of trained clients.

    The scales called after the pool are those of papers, which read every row that is partitioned.
    """
    base, table = whole.data, whole.columns is not None
    kind, source = chosen.scale or default_scale_of(base, table), catalog.source_of(base.name)
    kind = "none" if whole.is_text else kind
    if table or kind in FEATURES:
        return _prepare_columns(whole, cuts, names, kind, stay)
    seen = pool if kind in POOLED else cuts.train.only(stay).concatenate()
    look = ImageScale(affine_of(base.x, seen, kind, source), chosen.channels)
    affine = None if look.affine is None else tuple(a.tolist() for a in look.affine)
    kept = Preparation(scale=kind, affine=affine, channels=chosen.channels)
    inputs = InputFunction(lambda rows: look(base.x[rows]), look == ImageScale(None, None))
    return PreparedRows(kept, inputs)


def _prepare_columns(
    whole: UserData, cuts: Cuts, names: list[str], kind: str, stay: np.ndarray
) -> PreparedRows:
    """The same for columns: of a table, or of arrays of features."""
    base, n = whole.data, len(whole.data.y)
    columns = whole.columns or array_columns_of(base.x)
    x = base.x.reshape(n, -1)
    trained = cuts.train.only(stay), kind, [names[i] for i in stay]
    kept = fit_preparation(x, columns, *trained, whole.one_hot, whole.texts)
    shape = () if whole.columns else base.x.shape[1:]
    kept = kept._replace(shape=shape, missing_values=whole.missing_values)
    for i in np.setdiff1d(np.arange(len(names)), stay):  # a newcomer has a scale of its own too
        kept = add_client_scale(kept, names[i], x[cuts.train[i]], columns)
    owner = np.full(n, -1)
    for part in cuts if kind == "client" else ():
        owner[part.concatenate()] = part.owners()
    called = np.array([*names, ""])  # the last: of public rows, which are nobody's

    def inputs(rows: np.ndarray) -> np.ndarray:
        return prepare_rows(
            kept, x[rows], columns, called[owner[rows]] if kind == "client" else None
        )

    return PreparedRows(kept, InputFunction(inputs, as_is=False))


def _load_public(
    base: Dataset,
    held_out: np.ndarray,
    prepared: PreparedRows,
    chosen: DataOptions,
    seed: int,
    folder: str | Path | None,
) -> Public | None:
    """The public rows, where any were asked for."""
    if chosen.public is None:
        return None
    if chosen.public == HELD_OUT:
        x, y = prepared.inputs.of(held_out), base.y[held_out]
    else:
        kind = chosen.public_scale or prepared.preparation.scale
        shape = prepared.inputs.of(np.arange(1)).shape[1:]
        place = None if folder is None else Path(folder)
        x, y = load_public_images(chosen.public, chosen.public_rows, shape, kind, seed, place)
    return public_of(chosen.public, x, y, chosen.labelled)


def _truth_of(base: Dataset, dealt: ClientPartitions) -> torch.Tensor | None:
    """The true means of the clients, where the data know them."""
    if base.truth is None or not dealt.natural:
        return None
    return torch.tensor(base.truth[dealt.users])
