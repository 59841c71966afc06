"""What a user's table holds, what will be done with it, and what looks wrong, before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.core.task import TASKS
from coterie.data.arrays import FAR, measure_reach
from coterie.data.federation import PARTS, Federation, part_of
from coterie.data.prepare.preparation import FittedColumn, Preparation
from coterie.data.read.columns import CATEGORY, DATE, NUMBER, TEXT, Column
from coterie.data.read.file_rows import UserData, format_names
from coterie.data.read.id_columns import MIN_ROWS, count_different, has_own_values
from coterie.data.read.number_forms import parse_form
from coterie.data.read.tokenizer import is_text

LEAKAGE = 0.95  # a column that shares so much of the label's information gives it away
MOSTLY = 0.8  # a label that so many rows have is right nearly always: accuracy does not decide
LEAKS = "columns that all but give the label away (known before it?)"
GRID = 30  # intervals that a number is put in to compare it with the label
MAX_SAMPLE = 50_000  # rows that are compared with the label


class ColumnSummary(NamedTuple):
    """One column, for printing."""

    name: str
    kind: str
    missing: float  # share of the cells
    holds: str  # what is in it
    becomes: str  # what is done with it


def summarize_columns(whole: UserData, preparation: Preparation) -> list[ColumnSummary]:
    """Every column of a table, with what it becomes."""
    columns = whole.columns or []
    return [
        ColumnSummary(
            name=column.name,
            kind=column.kind,
            missing=float(np.isnan(cells).mean()),
            holds=_describe_values(cells, column),
            becomes=_describe_preparation(fitted, preparation.scale),
        )
        for column, fitted, cells in zip(columns, preparation.columns, whole.data.x.T, strict=True)
    ]


def _describe_values(cells: np.ndarray, column: Column) -> str:
    """The range of numbers and dates, the number of texts."""
    cells = cells[~np.isnan(cells)]
    if not len(cells):
        return "nothing"
    if column.kind in (CATEGORY, TEXT):
        return f"{len(column.values):,} texts"
    low, high = float(cells.min()), float(cells.max())
    if column.kind == DATE:
        days = np.array([low, high]).astype("datetime64[s]").astype("datetime64[D]")
        return f"{days[0]}..{days[1]}"
    form = parse_form(column.form)
    return f"{low:.4g} to {high:.4g} {form.unit if form else ''}".rstrip()


def _describe_preparation(fitted: FittedColumn, scale: str) -> str:
    """What is done with a column."""
    more = ", gaps" if fitted.indicator else ""
    if fitted.kind == TEXT:
        return f"{fitted.tokens:,} of {fitted.vocabulary:,} words"
    if fitted.kind == CATEGORY:
        if fitted.buckets:
            return f"hashed to {fitted.buckets}{more}"
        return f"one-hot, {len(fitted.categories) + 1}{more}"
    if fitted.kind == DATE:
        return f"day, weekday{', hour' if fitted.hours else ''}{more}"
    if fitted.kind == NUMBER and fitted.spread == 0:
        return f"constant: 0{more}"
    words = {"standard": "standardised", "robust": "robust scale", "client": "scaled by client"}
    return f"{words.get(scale, 'as it is') if fitted.kind == NUMBER else '0 or 1'}{more}"


def summarize_target(federation: Federation) -> list[tuple[float, float]]:
    """Mean and deviation of every client's label, over all its rows and in the label's unit; of
    times whether or not the event was seen.
    """
    target = federation.target
    parts = zip(*(part_of(federation, part) for part in PARTS), strict=True)
    held = [federation.y.numpy()[np.concatenate(rows)].astype(np.float64) for rows in parts]
    if TASKS[target.task].form.encode is not None:
        held = [np.abs(y) for y in held]
    shift, scale = TASKS[target.task].find_units(target.centre, target.spread)
    return [(float(y.mean() * scale + shift), float(y.std() * scale)) for y in held]


def compute_quantiles(
    federation: Federation, more: Mapping[str, Sequence[float]]
) -> list[tuple[str, list[float]]]:
    """Rows per client, and what more is known of each: least, quarters, most."""
    rows = {part: [float(len(r)) for r in part_of(federation, part)] for part in PARTS}
    return [
        (name, np.quantile(np.asarray(values), (0, 0.25, 0.5, 0.75, 1)).tolist())
        for name, values in (*rows.items(), *more.items())
    ]


def find_problems(whole: UserData) -> list[str]:
    """What looks wrong, a line each."""
    found = _find_label_problems(whole)
    if whole.columns is not None:
        found += _find_column_problems(whole)
        found += _find_duplicates(whole)
    return found


def find_traps(whole: UserData) -> list[str]:
    """Those of them that make every figure of a comparison mean something else."""
    found = _find_alike_names(whole)
    if whole.columns is not None and len(whole.data.y) <= MAX_SAMPLE:  # else it takes seconds
        found += [line for line in _find_column_problems(whole) if line.startswith(LEAKS)]
    return found


def _find_alike_names(whole: UserData) -> list[str]:
    """Names that are probably one class or client."""
    found = []
    for word, names in (("labels", whole.labels), ("clients", whole.clients)):
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault("".join(name.split()).casefold(), []).append(name)
        same = [f"'{a[0]}' and '{a[1]}'" for a in alike.values() if len(a) > 1]
        if same:
            found.append(f"{word} that differ only by case or blanks: {format_names(same)}")
    return found


def _find_label_problems(whole: UserData) -> list[str]:
    """Classes and clients that are probably one, classes of one row or of nearly all."""
    found = _find_alike_names(whole)
    if not whole.data.classes:
        return found
    counts = np.bincount(whole.data.y, minlength=len(whole.labels))
    rare = [f"'{whole.labels[k]}'" for k in np.flatnonzero(counts == 1)]
    if rare:
        found.append(f"labels of a single row: {format_names(rare)}")
    most, share = int(counts.argmax()), counts.max() / len(whole.data.y)
    if len(whole.labels) > 1 and share >= MOSTLY:
        found.append(
            f"{share:.0%} of the rows are '{whole.labels[most]}', so accuracy says little, and AUC "
            "or balanced accuracy decides (--class-weights balanced learns rare ones better)"
        )
    if len(whole.labels) == 1:
        found.append(f"there is one label only: '{whole.labels[0]}'")
    if len(whole.labels) > max(100, len(whole.data.y) // 10):
        found.append(f"{len(whole.labels):,} labels: is the label column a quantity or an id?")
    return found


def _find_column_problems(whole: UserData) -> list[str]:
    """Columns that are constant, ids, too large, far out, or that give the label away."""
    constant, ids, large = list[str](), list[str](), list[str]()
    telling, empty, sentences = list[str](), list[str](), list[str]()
    far = list[str]()
    rows, labels = len(whole.data.y), _label_bins_of(whole)
    distinct = count_different(whole.data.x)
    picked = np.arange(rows)
    if rows > MAX_SAMPLE:
        picked = np.random.default_rng(0).choice(rows, MAX_SAMPLE, replace=False)
    for column, cells in zip(whole.columns or [], whole.data.x.T, strict=True):
        name, filled = f"'{column.name}'", cells[~np.isnan(cells)]
        different = len(np.unique(filled))
        if not len(filled):
            empty.append(name)
            continue
        if column.kind == TEXT:
            continue  # every text may be another, and none gives the label away
        if column.kind == CATEGORY and is_text(pl.Series(column.values)):
            sentences.append(name)
            continue
        if different == 1:
            constant.append(name)
            continue
        if column.note == "beyond 2^53":
            large.append(name)
        elif column.kind == NUMBER and measure_reach(filled) > FAR:
            far.append(name)
        if rows >= MIN_ROWS and _is_id(filled, distinct, column):
            ids.append(name)
        elif rows >= MIN_ROWS and _is_leaking(cells[picked], different, labels[picked]):
            telling.append(name)
    lines = (
        ("columns without any cell", empty),
        ("constant columns, without use", constant),
        ("whole numbers beyond 2^53, which lose digits (ids? use --categories)", large),
        (
            f"numbers more than {FAR:.0f} interquartile ranges from the median, which move every "
            "model (take logarithms?)",
            far,
        ),
        ("columns that look like an id (leave them out with --drop)", ids),
        ("free text, of no use as names (--text COLUMN reads one word by word)", sentences),
        (LEAKS, telling),
    )
    return [f"{line}: {format_names(names)}" for line, names in lines if names]


def _label_bins_of(whole: UserData) -> np.ndarray:
    """Labels to compare columns with: classes, or the tenths that numbers fall into."""
    y = whole.data.y if whole.data.y.ndim == 1 else whole.data.y[:, 0]
    if whole.data.classes:
        return y
    return np.searchsorted(np.quantile(y, np.linspace(0.1, 0.9, 9)), y)


def _is_id(filled: np.ndarray, rows: int, column: Column) -> bool:
    """Whether nearly every one of so many different rows has a value of its own, and values are
    names or whole numbers.
    """
    if column.kind not in (NUMBER, CATEGORY) or not has_own_values(filled, rows):
        return False
    return column.kind == CATEGORY or bool((filled == np.floor(filled)).all())


def _is_leaking(cells: np.ndarray, different: int, labels: np.ndarray) -> bool:
    """Whether a column and the label nearly determine each other.

    Many-valued columns are put in intervals of equally many rows, as each value of its own would
    tell every label by chance.
    """
    from sklearn.metrics import normalized_mutual_info_score

    held = ~np.isnan(cells)
    cells, labels = cells[held], labels[held]
    if len(cells) < MIN_ROWS or len(np.unique(labels)) < 2:
        return False
    if different > GRID:
        edges = np.unique(np.quantile(cells, np.linspace(0, 1, GRID + 1)[1:-1]))
        cells = np.searchsorted(edges, cells)
    _, codes = np.unique(cells, return_inverse=True)
    # how much of the label's information the column holds, whatever else it holds
    order = normalized_mutual_info_score(labels, codes, average_method="min")
    return bool(order >= LEAKAGE and len(np.unique(codes)) <= len(codes) / 5)


def _find_duplicates(whole: UserData) -> list[str]:
    """Rows that are there more than once: in one client they may cross its parts."""
    x, y = whole.data.x, whole.data.y.reshape(len(whole.data.x), -1)[:, 0]
    frame = pl.DataFrame(x, schema=[str(k) for k in range(x.shape[1])]).with_columns(
        y=pl.Series(y),
        owner=pl.Series(
            np.zeros(len(y), np.int64) if whole.data.users is None else whole.data.users
        ),
    )
    cells = [name for name in frame.columns if name != "owner"]
    hashed = frame.select(pl.struct(cells).hash().alias("row"), "owner")
    groups = hashed.group_by("row").agg(pl.len().alias("rows"), pl.col("owner").n_unique())
    double = groups.filter(pl.col("rows") > 1)
    across = double.filter(pl.col("owner") > 1)
    found = []
    if double.height:
        extra = int(double["rows"].sum()) - double.height
        found.append(
            f"{extra:,} rows are copies of another ({extra / len(y):.1%}): the usual cut, shuffle, "
            "keeps them in one part of a client, others may not"
        )
    if across.height:
        found.append(f"{across.height:,} rows are held by several clients")
    return found
