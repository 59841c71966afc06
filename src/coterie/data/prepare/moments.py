"""Mean and spread of columns, client by client, and of all clients together in one exchange.

A client gives three numbers per column: how many cells are filled, their sum, and the sum of their
squared distances from the client's own mean. Two such summaries are combined exactly (Chan, Golub,
LeVeque, "Algorithms for computing the sample variance", The American Statistician 1983). Plain sums
of squares would add up too, but lose the spread of a column whose mean is large (a clock, an id).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EVEN = 1e-14  # a spread below this share of the mean is rounding, not data


@dataclass(frozen=True)
class Moments:
    """What standardising needs to know about some rows, column by column."""

    count: np.ndarray  # [d] filled cells
    total: np.ndarray  # [d] their sum
    squares: np.ndarray  # [d] sum of squared distances from their mean

    @classmethod
    def of(cls, rows: np.ndarray) -> Moments:
        """The summary of rows [n, d]; cells that are NaN are not counted."""
        filled = ~np.isnan(rows)
        count = filled.sum(0)
        total = np.where(filled, rows, 0).sum(0, dtype=np.float64)
        mean = total / np.maximum(count, 1)
        away = np.where(filled, rows - mean, 0)
        return cls(count, total, (away**2).sum(0, dtype=np.float64))

    @classmethod
    def of_each(cls, cells: np.ndarray, counts: np.ndarray) -> Moments:
        """The summaries [clients, d] of rows that lie one client after another."""
        ends = np.cumsum(counts)
        found = [np.zeros((len(counts), cells.shape[1]), kind) for kind in (int, float, float)]
        for n in np.unique(counts):  # clients with equally many rows are one block
            who = np.flatnonzero(counts == n)
            rows = (ends[who] - n)[:, None] + np.arange(n)
            block = cls.of(cells[rows].swapaxes(0, 1))
            for column, some in zip(found, (block.count, block.total, block.squares), strict=True):
                column[who] = some
        return cls(*found)

    def then(self, each: Moments) -> Moments:
        """The summary of these rows and those of several clients, added one after another."""
        count = np.cumsum(np.vstack([self.count[None], each.count]), axis=0)
        total = np.cumsum(np.vstack([self.total[None], each.total]), axis=0)
        before, after = Moments(count[:-1], total[:-1], each.squares), count[1:]
        apart = each.mean - before.mean
        both = before.count * each.count / np.maximum(after, 1)
        terms = np.stack([each.squares, apart**2 * both], axis=1).reshape(-1, count.shape[1])
        squares = np.cumsum(np.vstack([self.squares[None], terms]), axis=0)
        return Moments(count[-1], total[-1], squares[-1])

    @classmethod
    def none(cls, columns: int) -> Moments:
        """The summary of no rows."""
        return cls(np.zeros(columns, np.int64), np.zeros(columns), np.zeros(columns))

    def plus(self, other: Moments) -> Moments:
        """The summary of both sets of rows together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        both = self.count * other.count / np.maximum(count, 1)
        squares = self.squares + other.squares + apart**2 * both
        return Moments(count, self.total + other.total, squares)

    @property
    def mean(self) -> np.ndarray:
        """[d] means; 0 where no cell is filled."""
        means: np.ndarray = self.total / np.maximum(self.count, 1)
        return means

    def standard(self, of_sample: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each column; the deviation of a constant column is 0. of_sample:
        the squares are divided by n - 1, as those of few rows are.
        """
        mean = self.mean
        deviation = np.sqrt(self.squares / np.maximum(self.count - of_sample, 1))
        return mean, np.where(deviation > EVEN * np.abs(mean), deviation, 0.0)
