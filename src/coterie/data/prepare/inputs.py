"""Later rows of any kind as inputs of a model, prepared as its training rows were.

Rows are a pandas, polars or pyarrow table, a dict of columns, a list of dicts, or an array. A table
must have every column of training (others are ignored); an unseen text is the category `(other)`,
and a missing cell becomes what a missing cell became in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import torch

from coterie.core.errors import BadInput
from coterie.data.prepare.preparation import (
    Preparation,
    array_columns_of,
    prepare_frame,
    prepare_rows,
)
from coterie.data.prepare.scaling import ImageScale
from coterie.data.read.columns import CATEGORY, NUMBER, TEXT
from coterie.data.read.user_data import is_frame


class InputBuilder(NamedTuple):
    """All that is needed to make inputs of rows."""

    preparation: Preparation | None  # None: rows were inputs already
    shape: tuple[int, ...]  # of one input of the model
    client: str = ""  # whose scale counts, where each client has its own

    @property
    def is_table(self) -> bool:
        """Whether rows are cells of named columns, not arrays."""
        kept = self.preparation
        return kept is not None and bool(kept.columns) and not kept.shape

    @property
    def names(self) -> list[str]:
        """The columns of a table; [] for arrays."""
        kept = self.preparation
        return [c.name for c in kept.columns] if kept and self.is_table else []

    @property
    def texts(self) -> list[str]:
        """Columns of a table that must be read as they are written."""
        kept = self.preparation
        columns = kept.columns if kept and self.is_table else ()
        return [c.name for c in columns if c.kind in (CATEGORY, TEXT) or c.form]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row that is an array, before preparation."""
        kept = self.preparation
        if kept is not None and kept.shape:
            return kept.shape
        if kept is not None and kept.channels and len(self.shape) == 3:
            return (1, *self.shape[1:])  # a grey image, repeated
        return self.shape

    def inputs(
        self,
        rows: Any,
        place: str = "rows",
        owners: Sequence[str] | None = None,
        before: int = 0,
    ) -> np.ndarray:
        """Inputs [n, *shape] from rows of any kind.

        owners: the client of every row, where they are of several. before: rows of the same file
        that came earlier.
        """
        found = to_frame_or_array(rows, place)
        kept = self.preparation
        if owners is None and kept is not None and kept.clients:
            owners = [self.client] * len(found)
        if kept is not None and self.is_table:
            frame = found if isinstance(found, pl.DataFrame) else self._name_columns(found, place)
            if frame.height == 0:
                return np.zeros((0, *self.shape), np.int64 if kept.text else np.float32)
            return prepare_frame(kept, frame, place, owners, before)
        array = found if isinstance(found, np.ndarray) else _stack_columns(found, place)
        return self._from_array(self._reshape_rows(array, place), place, owners, before)

    def _name_columns(self, array: np.ndarray, place: str) -> pl.DataFrame:
        """An array as a table, its columns in the order of training."""
        names = self.names
        if array.ndim != 2 or array.shape[1] != len(names):
            raise BadInput(
                f"{place}: an array of shape {list(array.shape)}, but a row has "
                f"{len(names)} columns: {', '.join(names[:5])}{', ...' * (len(names) > 5)}"
            )
        cells = {name: array[:, k].tolist() for k, name in enumerate(names)}
        frame = to_frame_or_array(cells, place)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _reshape_rows(self, array: np.ndarray, place: str) -> np.ndarray:
        """Rows in the shape that they had in training."""
        wanted = self.row_shape
        if array.ndim == 4 and array.shape[1:] == (*wanted[1:], wanted[0]) != wanted:
            array = np.moveaxis(array, 3, 1)  # an image with its channels last
        if array.ndim < 1 or int(np.prod(array.shape[1:])) != int(np.prod(wanted)):
            raise BadInput(
                f"{place}: rows of shape {list(array.shape[1:])}, but the model was trained on "
                f"{list(wanted)}"
            )
        return array.reshape(len(array), *wanted)

    def _from_array(
        self, array: np.ndarray, place: str, owners: Sequence[str] | None, before: int
    ) -> np.ndarray:
        """Inputs from arrays of numbers."""
        if array.dtype.kind not in "biuf":
            raise BadInput(f"{place}: rows of {array.dtype}, not of numbers")
        bad = np.argwhere(~np.isfinite(array.astype(np.float64, copy=False)))
        if len(bad):
            raise BadInput(
                f"{place}: row {bad[0][0] + 1 + before:,} is not finite; fill or remove it"
            )
        kept = self.preparation
        if kept is None:
            return array if array.dtype == np.int64 else array.astype(np.float32)
        if kept.columns:
            cells = array.reshape(len(array), -1).astype(np.float32)  # as in training
            return prepare_rows(kept, cells, array_columns_of(array), owners)
        affine = None
        if kept.affine is not None:
            centre, spread = (np.asarray(part, np.float32) for part in kept.affine)
            affine = (centre, spread)
        return ImageScale(affine, kept.channels)(array)


def to_frame_or_array(rows: Any, place: str = "rows") -> pl.DataFrame | np.ndarray:
    """Rows as a polars frame, or as an array where they have no names."""
    try:
        if is_frame(rows):
            if isinstance(rows, pl.LazyFrame):
                return rows.collect()
            return rows if isinstance(rows, pl.DataFrame) else pl.from_pandas(rows)
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return pl.DataFrame(pl.from_arrow(rows))
        if isinstance(rows, Mapping):
            return pl.DataFrame(dict(rows), strict=False)
        if isinstance(rows, Sequence) and rows and isinstance(rows[0], Mapping):
            return pl.from_dicts(list(rows), infer_schema_length=None)
        return rows.numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
    except Exception as problem:  # polars and NumPy raise many kinds; the user needs one line
        why = " ".join(str(problem).split()) or type(problem).__name__
        raise BadInput(f"{place}: these rows cannot be read ({why[:200]})") from None


def _stack_columns(frame: pl.DataFrame, place: str) -> np.ndarray:
    """A table as an array: its columns side by side, or the lists of its only column."""
    if frame.width == 1 and frame.to_series(0).dtype.base_type() in (pl.List, pl.Array):
        return np.asarray(to_frame_or_array(frame.to_series(0).to_list(), place))
    odd = [s.name for s in frame.iter_columns() if not (s.dtype.is_numeric() or s.dtype == pl.Null)]
    if odd:
        raise BadInput(f"{place}: column '{odd[0]}' is no {NUMBER}, and rows are arrays here")
    gaps = [s.name for s in frame.iter_columns() if s.null_count()]
    if gaps:
        raise BadInput(f"{place}: column '{gaps[0]}' has an empty cell; fill or remove the row")
    return frame.to_numpy()
