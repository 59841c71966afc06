"""What sites tell of the columns of their tables before the first round, and what all make of it.

A site tells of its training rows, by column: mean and deviation, how many cells are missing,
quartiles, and the categories with their counts. Nothing is told of fewer rows than `[limits] rows`
of its site.toml: a rarer category is not named, fewer missing cells are told as none, a column with
fewer filled cells is told as empty. Quartiles are rounded to a hundredth of the deviation, so that
none is the cell of a row.

The server pools them. A category has a column of its own where some site named it, and all others
are `(other)`; a missing number becomes the mean of the sites' medians by their rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.core.errors import BadInput
from coterie.data.prepare.moments import Moments
from coterie.data.prepare.preparation import BUCKETS, DAY, to_scale_units
from coterie.data.read.columns import BOOLEAN, CATEGORY, DATE, Column
from coterie.deploy.config_files import Limits
from coterie.deploy.logs import sanitize
from coterie.deploy.table_columns import LARGEST_NUMBER, LONGEST_NAME, ONE_HOT, AgreedColumn

QUARTILES = (0.25, 0.5, 0.75)
MOST_CATEGORIES = (
    100  # categories of a column that a site names, its largest: beyond ONE_HOT is hashed
)
SHOWN = 8  # categories in a line


class ColumnFacts(NamedTuple):
    """What a site tells of one column beside its mean and deviation."""

    missing: int = 0  # cells
    hours: bool = False  # whether enough dates have a time of day
    quartiles: tuple[float, ...] = ()  # of numbers, and of dates in days
    counts: tuple[tuple[str, int], ...] = ()  # of categories, and of true and false


class ColumnSums(NamedTuple):
    """What a site tells of its training rows."""

    rows: int
    moments: Moments
    facts: tuple[ColumnFacts, ...] = ()  # of a table, else ()


# At a site


def summarize_columns(
    cells: np.ndarray, columns: Sequence[Column], limits: Limits
) -> tuple[Moments, tuple[ColumnFacts, ...]]:
    """What may be told of training rows [n, columns]."""
    units = to_scale_units(cells, columns)
    moments = _limit_moments(Moments.of(units), len(cells), limits.rows)
    mean, deviation = moments.standard()
    facts = tuple(
        _describe_column(cells[:, k], units[:, k], c, float(mean[k]), float(deviation[k]), limits)
        for k, c in enumerate(columns)
    )
    return moments, facts


def _limit_moments(found: Moments, rows: int, least: int) -> Moments:
    """The same without columns of few filled cells; where few are missing, their number is not
    told: the sums are those of all rows with the same mean and deviation.
    """
    filled = found.count
    reported = np.where(rows - filled < least, rows, filled) * (filled >= least)
    share = reported / np.maximum(filled, 1)
    return Moments(reported, found.total * share, found.squares * share)


def _describe_column(
    cells: np.ndarray,
    units: np.ndarray,
    column: Column,
    mean: float,
    deviation: float,
    limits: Limits,
) -> ColumnFacts:
    gone = np.isnan(cells)
    filled = cells[~gone]
    facts = ColumnFacts(missing=_limit(int(gone.sum()), limits.rows))
    if column.kind in (CATEGORY, BOOLEAN):
        return facts._replace(counts=_count_names(filled, column, limits.rows))
    if len(filled) < limits.rows:
        return facts
    hours = column.kind == DATE and _limit(int((filled % DAY != 0).sum()), limits.rows) > 0
    quartiles = np.quantile(units[~gone], QUARTILES)
    if limits.digits and deviation:
        step = deviation * 10.0 ** (1 - limits.digits)
        quartiles = mean + np.round((quartiles - mean) / step) * step
    return facts._replace(hours=hours, quartiles=tuple(float(q) for q in quartiles))


def _count_names(filled: np.ndarray, column: Column, least: int) -> tuple[tuple[str, int], ...]:
    """The names with enough rows, most frequent first."""
    names = column.values if column.kind == CATEGORY else ("false", "true")
    codes, counts = np.unique(filled, return_counts=True)
    found = zip((names[int(code)] for code in codes), counts.tolist(), strict=True)
    reported = [(name, n) for name, n in found if n >= least and len(name) <= LONGEST_NAME]
    return tuple(sorted(reported, key=lambda pair: (-pair[1], pair[0]))[:MOST_CATEGORIES])


def _limit(count: int, least: int) -> int:
    return count if count >= least else 0


# At the server


def read_facts(
    given: Any, columns: Sequence[Column], moments: Moments, rows: int
) -> tuple[ColumnFacts, ...]:
    """What a site told of its columns, if so many rows can have it."""
    try:
        found = [ColumnFacts(m, h, tuple(q), tuple((n, k) for n, k in c)) for m, h, q, c in given]
        mean, spread = moments.standard()
        good = len(found) == len(columns) and all(
            _is_possible(facts, column, rows)
            and _fit_moments(facts.quartiles, float(mean[k]), float(spread[k]))
            for k, (facts, column) in enumerate(zip(found, columns, strict=True))
        )
    except (TypeError, ValueError):
        good = False
    if not good:
        raise BadInput(f"tells of its columns what {rows:,} rows cannot have")
    return tuple(found)


def _is_possible(facts: ColumnFacts, column: Column, rows: int) -> bool:
    names = [name for name, _ in facts.counts]
    numbers = [facts.missing, *(count for _, count in facts.counts)]
    whole = all(type(n) is int and 0 <= n <= rows for n in numbers)
    named = column.kind in (CATEGORY, BOOLEAN)
    return (
        whole
        and sum(numbers) <= rows
        and isinstance(facts.hours, bool)
        and len(names) == len(set(names)) <= (MOST_CATEGORIES if named else 0)
        and all(isinstance(name, str) and len(name) <= LONGEST_NAME for name in names)
        and (column.kind != BOOLEAN or set(names) <= {"true", "false"})
        and len(facts.quartiles) in ((0,) if named else (0, len(QUARTILES)))
        and all(abs(q) <= LARGEST_NUMBER for q in facts.quartiles)
        and list(facts.quartiles) == sorted(facts.quartiles)
    )


def _fit_moments(quartiles: Sequence[float], mean: float, deviation: float) -> bool:
    """Whether quartiles are where a mean and a deviation let them be: at most sqrt((1 - p) / p)
    deviations away (Cantelli), and a little more for rounding.
    """
    pairs = zip(QUARTILES, quartiles, strict=False)
    furthest = ((q, math.sqrt(max(p, 1 - p) / min(p, 1 - p)) + 0.1) for p, q in pairs)
    slack = 1e-6 * (1 + abs(mean))
    return all(abs(q - mean) <= far * deviation + slack for q, far in furthest)


def pool_facts(
    columns: Sequence[Column], reported: Sequence[Sequence[ColumnFacts]], counts: np.ndarray
) -> list[AgreedColumn]:
    """What all sites do with each column; counts: [sites, columns] filled cells that count."""
    return [
        _pool_column(column, [facts[k] for facts in reported], counts[:, k])
        for k, column in enumerate(columns)
    ]


def _pool_column(column: Column, facts: Sequence[ColumnFacts], weights: np.ndarray) -> AgreedColumn:
    agreed = AgreedColumn(indicator=any(f.missing for f in facts))
    named = pool_counts(facts)
    if column.kind == CATEGORY:
        if len(named) > ONE_HOT:
            return agreed._replace(buckets=BUCKETS)
        return agreed._replace(categories=tuple(sorted(named)))
    if column.kind == BOOLEAN:  # the median of zeros and ones
        more = named["true"] - named["false"]
        return agreed._replace(fill=0.5 + 0.5 * float(np.sign(more)) if named else 0.0)
    quartiles = pool_quartiles(facts, weights)
    fill = quartiles[1] * (DAY if column.kind == DATE else 1.0) if quartiles else 0.0
    return agreed._replace(fill=fill, hours=any(f.hours for f in facts))


def pool_counts(facts: Sequence[ColumnFacts]) -> Counter[str]:
    """Rows of each name that some site told, of all sites that told it."""
    total: Counter[str] = Counter()
    for one in facts:
        total.update(dict(one.counts))
    return total


def pool_quartiles(facts: Sequence[ColumnFacts], weights: np.ndarray) -> tuple[float, ...]:
    """The mean of the sites' quartiles by their filled cells; () where nobody told any."""
    pairs = [(f.quartiles, w) for f, w in zip(facts, weights, strict=True) if f.quartiles and w > 0]
    if not pairs:
        return ()
    quartiles, share = np.array([q for q, _ in pairs]), np.array([w for _, w in pairs], float)
    return tuple(float(q) for q in (quartiles * (share / share.sum())[:, None]).sum(0))


# For a person


def format_statistics(
    columns: Sequence[Column], reported: Mapping[str, ColumnSums], target: str = ""
) -> list[str]:
    """A line for each column of all sites together; target: the name of a label that is a number,
    whose sums come last.
    """
    names = [c.name for c in columns] or [
        f"column {k + 1}" for k in range(_width_of(reported, target))
    ]
    total = Moments.none(len(names) + bool(target))
    for one in reported.values():
        total = total.plus(one.moments)
    mean, deviation = total.standard()
    lines = [f"{len(reported)} sites, {sum(one.rows for one in reported.values()):,} training rows"]
    for k, name in enumerate([*names, *([target] if target else [])]):
        numbers = f"mean {mean[k]:.4g}, deviation {deviation[k]:.3g}"
        if not columns or k >= len(columns):
            lines.append(f"{sanitize(name, 80)}: {total.count[k]:,.0f} cells, {numbers}")
            continue
        facts = [one.facts[k] for one in reported.values()]
        weights = np.array([one.moments.count[k] for one in reported.values()])
        lines.append(_format_column(columns[k], facts, weights, numbers))
    return lines


def _width_of(reported: Mapping[str, ColumnSums], target: str) -> int:
    return max((len(one.moments.count) for one in reported.values()), default=0) - bool(target)


def _format_column(
    column: Column, facts: Sequence[ColumnFacts], weights: np.ndarray, numbers: str
) -> str:
    """One column of a table."""
    missing = sum(f.missing for f in facts)
    named = pool_counts(facts)
    count = sum(named.values()) if column.kind in (CATEGORY, BOOLEAN) else int(weights.sum())
    head = f"{sanitize(column.name, 80)} ({column.kind}): {count:,} cells, {missing:,} missing"
    if column.kind in (CATEGORY, BOOLEAN):
        most = named.most_common(SHOWN)
        shown = [f"{sanitize(name, 40)} {n:,}" for name, n in most]
        more = [f"{len(named) - SHOWN} more"] if len(named) > SHOWN else []
        return f"{head}; {', '.join([*shown, *more]) or 'no category has enough rows'}"
    quartiles = pool_quartiles(facts, weights)
    if column.kind == DATE:
        days = [str(np.datetime64(round(q), "D")) for q in quartiles]
        return f"{head}; quartiles {', '.join(days)}" if days else head
    if not quartiles:
        return head
    return f"{head}; {numbers}, quartiles {', '.join(f'{q:.4g}' for q in quartiles)}"
