"""Columns that number or name the rows: of no use as inputs, as a model learns them by heart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from coterie.data.arrays import hash_rows
from coterie.data.read.columns import CATEGORY, NUMBER, Column
from coterie.data.read.tokenizer import ID_LIKE, is_text

MIN_ROWS = 20  # rows below which chance alone looks like a finding
ENDINGS = ("id", "ids", "no", "nr", "key", "index", "idx", "uuid", "guid")


def count_different(x: np.ndarray) -> int:
    """How many different rows there are."""
    return len(np.unique(hash_rows(x)))


def find_ids(columns: Sequence[Column], x: np.ndarray) -> list[int]:
    """The columns of which every different row has a value of its own, copies or not: texts, and
    whole numbers that are called an id.
    """
    if len(x) < MIN_ROWS:
        return []
    likely = [k for k, column in enumerate(columns) if _may_be_id(column, x[:, k])]
    rows = count_different(x) if likely else 0
    if 2 * rows < len(x):  # equal rows are no copies where there are so many
        return []
    return [k for k in likely if has_own_values(x[:, k], rows)]


def has_own_values(cells: np.ndarray, rows: int) -> bool:
    """Whether nearly every one of so many different rows has a value of its own."""
    filled = cells[~np.isnan(cells)]
    return len(np.unique(filled)) >= ID_LIKE * min(len(filled), rows) > 0


def _may_be_id(column: Column, cells: np.ndarray) -> bool:
    """Whether it is worth a look; numbers that are whole and all different may be a quantity."""
    if column.kind == CATEGORY:
        many = 2 * len(column.values) >= len(cells)
        return many and not is_text(pl.Series(column.values))
    filled = cells[~np.isnan(cells)]
    if column.kind != NUMBER or column.form or not len(filled) or (filled % 1).any():
        return False
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column.name).lower())
    return words[-1] in ENDINGS
