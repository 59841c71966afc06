"""From the cells of a table to inputs of a model, fitted on training rows and nothing else.

A number is standardised, a missing one takes the training median and a second column says that it
was missing. A text is one column per category of the training rows and one for every other text;
more categories than that are hashed. A date is its day, its weekday and its hour. Rows that are
texts become numbers of words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from coterie.core.errors import BadInput
from coterie.data.client_rows import ClientRows
from coterie.data.prepare.moments import Moments
from coterie.data.read.columns import (
    BOOLEAN,
    CATEGORY,
    DATE,
    NUMBER,
    TEXT,
    Column,
    ParsedColumns,
    RowSource,
    read_known_columns,
)
from coterie.data.read.tokenizer import (
    DEFAULT_OPTIONS,
    TokenizerOptions,
    fit_tokenizer,
    load_folder_tokenizer,
    tokenize,
)
from coterie.data.target import Target
from coterie.data.target import target_from_dict as target_from_dict

DAY = 86_400.0  # seconds
BUCKETS = 32  # columns of a hashed text
OTHER, MISSING = "(other)", "(missing)"
CHUNK = 4096  # clients whose moments are summed at once


class FittedColumn(NamedTuple):
    """What the training rows said about one column."""

    name: str
    kind: str
    fill: float = 0.0  # what a missing number becomes: the training median
    indicator: bool = False  # whether a column says which cells were missing
    centre: float = 0.0  # becomes 0; of a date in days
    spread: float = 1.0  # becomes 1; 0: the column is constant and becomes 0
    categories: tuple[str, ...] = ()  # of the training rows, each a column
    buckets: int = 0  # columns of a text that is hashed instead
    hours: bool = False  # whether a date has a time of day
    form: str = ""  # how its texts spelled dates or numbers, see coterie.data.read.columns
    tokens: int = 0  # of a text: how many numbers it becomes
    vocabulary: int = 0  # of a text: how many different ones there are
    tokenizer: str = ""  # of a text: as the tokenizers library writes it

    @property
    def outputs(self) -> list[str]:
        """What its inputs are called."""
        name, end = self.name, [f"{self.name} {MISSING}"] if self.indicator else []
        match self.kind:
            case "category" if self.buckets:
                return [*(f"{name} #{k}" for k in range(self.buckets)), *end]
            case "category":
                return [*(f"{name} = {value}" for value in (*self.categories, OTHER)), *end]
            case "date":
                parts = ["weekday", "hour"] if self.hours else ["weekday"]
                turns = [f"{name} {p} {f}" for p in parts for f in ("sine", "cosine")]
                return [f"{name} day", *turns, *end]
            case "text":
                return [f"{name} token {k + 1}" for k in range(self.tokens)]
        return [name, *end]


class Preparation(NamedTuple):
    """All that makes cells inputs, so that later rows can be prepared alike."""

    scale: str
    columns: tuple[FittedColumn, ...] = ()
    shape: tuple[int, ...] = ()  # of a row of arrays; (): a table
    # of each client's own columns (scale = client), else nothing: {name: (centres, spreads)}
    clients: Mapping[str, tuple[list[float], list[float]]] = {}
    affine: tuple[Any, Any] | None = None  # of images: (centre, spread) as nested lists
    channels: int | None = None  # how often a grey image is repeated
    left_out: tuple[str, ...] = ()  # clients with too few rows
    target: Target | None = None  # what the label is learnt as; None: data that say no more
    missing_values: tuple[str, ...] = ()  # texts that count as a blank cell

    @property
    def outputs(self) -> list[str]:
        """What the inputs of the model are called."""
        return [name for column in self.columns for name in column.outputs]

    @property
    def text(self) -> FittedColumn | None:
        """The column of texts that are read word by word; None: rows are no texts."""
        return self.columns[0] if self.columns and self.columns[0].kind == TEXT else None

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON knows it."""
        return self._asdict() | {
            "columns": [column._asdict() for column in self.columns],
            "clients": {name: list(both) for name, both in self.clients.items()},
            "inputs": self.outputs,
            "target": self.target.to_dict() if self.target else None,
        }


def preparation_from_dict(settings: Mapping[str, Any]) -> Preparation:
    """A preparation as `to_dict` wrote it."""
    known = {k: v for k, v in settings.items() if k in Preparation._fields}
    columns = tuple(
        FittedColumn(**(c | {"categories": tuple(c["categories"])})) for c in settings["columns"]
    )
    clients = {name: (both[0], both[1]) for name, both in settings["clients"].items()}
    fixed = {
        name: tuple(settings.get(name, ())) for name in ("shape", "left_out", "missing_values")
    }
    target = target_from_dict(settings["target"]) if settings.get("target") else None
    made = {"columns": columns, "clients": clients, "target": target}
    return Preparation(**(known | fixed | made))


def fit_preparation(
    x: np.ndarray,
    columns: Sequence[Column],
    train: Sequence[np.ndarray],
    scale: str,
    names: Sequence[str],
    one_hot: int,
    texts: TokenizerOptions = DEFAULT_OPTIONS,
) -> Preparation:
    """What the training rows of all clients say; no other row of x [n, columns] is read."""
    every = ClientRows.of(train).concatenate()
    if columns[0].kind == TEXT:
        return Preparation(scale=scale, columns=(_fit_text(x[every, 0], columns[0], texts),))
    pooled = Moments.none(len(columns))
    own: dict[str, tuple[list[float], list[float]]] = {}
    held = ClientRows.of(train)
    for start in range(0, len(held), CHUNK):
        some = held[start : start + CHUNK]
        each = Moments.of_each(to_scale_units(x[some.concatenate()], columns), some.counts)
        pooled = pooled.then(each)
        if scale == "client":
            centres, spreads = (values.tolist() for values in each.standard(of_sample=True))
            scales = zip(centres, spreads, strict=True)
            own |= dict(zip(names[start : start + CHUNK], scales, strict=True))
    centre, spread = pooled.standard()
    if scale == "robust":
        centre, spread = _robust_scale_of(x, columns, every, spread)
    elif scale == "none":
        centre, spread = np.zeros(len(columns)), np.ones(len(columns))
    fitted = tuple(
        _fit_column(x[every, k], column, float(centre[k]), float(spread[k]), one_hot)
        for k, column in enumerate(columns)
    )
    return Preparation(scale=scale, columns=fitted, clients=own)


def add_client_scale(
    preparation: Preparation, name: str, rows: np.ndarray, columns: Sequence[Column]
) -> Preparation:
    """The preparation with the scale of one more client, fitted on its training rows [n, columns];
    unchanged where all clients have one scale.
    """
    if preparation.scale != "client":
        return preparation
    centres, spreads = Moments.of(to_scale_units(rows, columns)).standard(of_sample=True)
    own = {name: (centres.tolist(), spreads.tolist())}
    return preparation._replace(clients={**preparation.clients, **own})


def to_scale_units(rows: np.ndarray, columns: Sequence[Column]) -> np.ndarray:
    """Cells in the unit in which they are scaled: dates in days; what is never scaled is NaN."""
    units = {NUMBER: 1.0, DATE: DAY}
    scale = np.array([units.get(column.kind, np.nan) for column in columns])
    measured: np.ndarray = rows / scale
    return measured


def _robust_scale_of(
    x: np.ndarray, columns: Sequence[Column], rows: np.ndarray, deviation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Median and interquartile range; the deviation where most cells are the same."""
    centre, spread = np.zeros(len(columns)), deviation.copy()
    for k, column in enumerate(columns):
        cells = to_scale_units(x[rows, k : k + 1], [column])[:, 0]
        cells = cells[~np.isnan(cells)]
        if len(cells):
            low, centre[k], high = np.quantile(cells, (0.25, 0.5, 0.75))
            spread[k] = high - low if high > low else deviation[k]
    return centre, spread


def _fit_column(
    cells: np.ndarray, column: Column, centre: float, spread: float, one_hot: int
) -> FittedColumn:
    """One column of the training rows."""
    gone = np.isnan(cells)
    filled = cells[~gone]
    fitted = FittedColumn(
        name=column.name, kind=column.kind, indicator=bool(gone.any()), form=column.form
    )
    if column.kind == CATEGORY:
        held = tuple(column.values[int(code)] for code in np.unique(filled))
        if len(held) > one_hot:
            return fitted._replace(buckets=BUCKETS)
        return fitted._replace(categories=held)
    fill = float(np.median(filled)) if len(filled) else 0.0
    if column.kind == BOOLEAN:
        return fitted._replace(fill=fill)
    hours = column.kind == DATE and bool((filled % DAY != 0).any())
    return fitted._replace(fill=fill, centre=centre, spread=spread, hours=hours)


def _fit_text(cells: np.ndarray, column: Column, how: TokenizerOptions) -> FittedColumn:
    """The words of the training rows; a missing text has none."""
    held = (column.values[int(code)] for code in cells[~np.isnan(cells)])
    made = load_folder_tokenizer(how) if how.folder else fit_tokenizer(held, how, column.name)
    return FittedColumn(
        name=column.name,
        kind=TEXT,
        tokens=how.tokens,
        vocabulary=made.words,
        tokenizer=made.json,
    )


def prepare_rows(
    preparation: Preparation,
    x: np.ndarray,
    columns: Sequence[Column],
    owners: Sequence[str] | None = None,
) -> np.ndarray:
    """Inputs of a model [n, inputs] float32 from cells [n, columns]; numbers of words are int64.

    owners: the client of every row, where each is scaled by its own numbers.
    """
    known = [(c.name, c.kind) for c in columns]
    wanted = [(c.name, c.kind) for c in preparation.columns]
    if known != wanted:
        odd = next((w for w, k in zip(wanted, known, strict=False) if w != k), wanted[-1])
        raise BadInput(f"the rows have no column '{odd[0]}' of kind {odd[1]} as in training")
    if preparation.text:
        return _encode_tokens(x[:, 0], preparation.text, columns[0])
    out = np.zeros((len(x), len(preparation.outputs)), np.float32)
    centre, spread = _scales_of(preparation, owners)
    start = 0
    for k, (fitted, column) in enumerate(zip(preparation.columns, columns, strict=True)):
        width = len(fitted.outputs)
        target = out[:, start : start + width]
        if fitted.kind == CATEGORY:
            _write_texts(target, x[:, k], fitted, column)
        else:
            _write_numbers(target, x[:, k], fitted, centre[..., k], spread[..., k])
        if fitted.indicator:
            target[:, -1] = np.isnan(x[:, k])
        start += width
    return out.reshape(-1, *preparation.shape) if preparation.shape else out


def prepare_frame(
    preparation: Preparation,
    frame: pl.DataFrame,
    name: str,
    owners: Sequence[str] | None = None,
    before: int = 0,
) -> np.ndarray:
    """Inputs from later rows of the same table, prepared as the training rows were.

    before: rows of the same file that came earlier, so that messages count rightly.
    """
    read = read_later_rows(preparation, frame, RowSource((name,), (frame.height,), before))
    return prepare_rows(preparation, read.x, read.columns, owners)


def read_later_rows(
    preparation: Preparation, frame: pl.DataFrame, place: RowSource
) -> ParsedColumns:
    """Cells of later rows of the same table, read as those of training were."""
    known = [Column(name=c.name, kind=c.kind, form=c.form) for c in preparation.columns]
    return read_known_columns(frame, known, place, preparation.missing_values)


def _scales_of(
    preparation: Preparation, owners: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Centres and spreads, [columns] for all rows or [n, columns] of each row's client."""
    centre = np.array([c.centre for c in preparation.columns])
    spread = np.array([c.spread for c in preparation.columns])
    if not preparation.clients or owners is None:
        return centre, spread
    names, member = np.unique(np.asarray(owners), return_inverse=True)
    own = [preparation.clients.get(name, (centre, spread)) for name in names.tolist()]
    return np.array([c for c, _ in own])[member], np.array([s for _, s in own])[member]


def _write_numbers(
    target: np.ndarray,
    cells: np.ndarray,
    fitted: FittedColumn,
    centre: np.ndarray,
    spread: np.ndarray,
) -> None:
    """Numbers, truth values and dates."""
    cells = np.where(np.isnan(cells), fitted.fill, cells)
    if fitted.kind == BOOLEAN:
        target[:, 0] = cells
        return
    value = cells / DAY if fitted.kind == DATE else cells
    safe = np.where(spread > 0, spread, 1.0)
    target[:, 0] = np.where(spread > 0, (value - centre) / safe, 0.0)
    if fitted.kind == DATE:
        days = np.floor(cells / DAY)
        turns = [2 * np.pi * ((days + 3) % 7) / 7]  # 1970 began on a Thursday; Monday is 0
        if fitted.hours:
            turns.append(2 * np.pi * (cells % DAY) / DAY)
        for k, turn in enumerate(turns):
            target[:, 1 + 2 * k], target[:, 2 + 2 * k] = np.sin(turn), np.cos(turn)


def _write_texts(
    target: np.ndarray, cells: np.ndarray, fitted: FittedColumn, column: Column
) -> None:
    """One column per category of the training rows, or the buckets of a hash.

    A missing text is in no category; it is an (other) one where training never missed any.
    """
    width = target.shape[1] - fitted.indicator
    lookup = np.zeros((len(column.values) + 1, width), np.float32)  # the last row: missing
    if fitted.buckets:
        from sklearn.feature_extraction import FeatureHasher

        hasher = FeatureHasher(fitted.buckets, input_type="string", alternate_sign=False)
        if column.values:
            lookup[:-1] = hasher.transform([[value] for value in column.values]).toarray()
    else:
        at = {value: k for k, value in enumerate(fitted.categories)}
        places = [at.get(value, width - 1) for value in column.values]
        lookup[np.arange(len(places)), places] = 1
        lookup[-1, -1] = 0 if fitted.indicator else 1
    codes = np.where(np.isnan(cells), len(column.values), cells).astype(np.int64)
    target[:, :width] = lookup[codes]


def _encode_tokens(cells: np.ndarray, fitted: FittedColumn, column: Column) -> np.ndarray:
    """Numbers of words [n, tokens]; a missing text is as an empty one."""
    codes, at = np.unique(np.where(np.isnan(cells), -1, cells), return_inverse=True)
    texts = ["" if code < 0 else column.values[int(code)] for code in codes]
    return tokenize(fitted.tokenizer, texts)[at]


def array_columns_of(x: np.ndarray) -> list[Column]:
    """The columns of rows that are arrays of numbers, named by their place."""
    return [Column(str(k), NUMBER) for k in range(int(np.prod(x.shape[1:])))]
