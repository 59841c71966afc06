"""Tables that are drawn, not measured: natural federations that need no file and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from coterie.core.errors import BadInput, suggest_name
from coterie.core.files import catch_write_errors, check_new_folder
from coterie.core.rng import stream

FIELDS, LEAFY = 29, 15  # of the landmine table, and how many of them are overgrown
SCHOOLS = 139


def make_landmines(seed: int = 0) -> pl.DataFrame:
    """Like the landmine data of multi-task learning: 29 fields on two kinds of ground, 9 features
    of a radar echo, about 8 % mines.

    What gives a mine away depends on the ground and a little on the field.
    """
    rng = stream(seed, "landmines")
    kinds = rng.normal(0, 0.8, (2, 9))
    frames = []
    for field in range(FIELDS):
        n = int(rng.integers(445, 690, endpoint=True))
        sign = kinds[int(field >= LEAFY)] + rng.normal(0, 0.25, 9)
        mine = (rng.random(n) < 0.08).astype(np.int64)
        echo = rng.normal(rng.normal(0, 0.5, 9), 1, (n, 9)) + mine[:, None] * sign
        columns = {f"echo{j + 1}": np.round(echo[:, j], 4) for j in range(9)}
        frames.append(pl.DataFrame({"field": [f"field {field + 1:02d}"] * n, **columns}))
        frames[-1] = frames[-1].with_columns(mine=mine)
    return pl.concat(frames)


def make_schools(seed: int = 0) -> pl.DataFrame:
    """Like the exam scores of Inner London: 139 schools of 22 to 251 pupils, few features of each
    pupil, and much that no feature tells.

    A school has a level of its own and weighs what a pupil brings a little differently.
    """
    rng = stream(seed, "schools")
    bands, groups = np.array([9.0, 0.0, -8.0]), rng.normal(0, 2.5, 6)
    frames = []
    for school in range(SCHOOLS):
        n = int(rng.integers(22, 251, endpoint=True))
        level, slope = rng.normal(0, 4), rng.normal(1, 0.25)
        year, band = rng.integers(1, 4, n), rng.choice(3, n, p=(0.25, 0.5, 0.25))
        girl, group = rng.integers(0, 2, n), rng.choice(6, n, p=rng.dirichlet(np.full(6, 0.8)))
        meals = rng.beta(2, 5)  # share of pupils with free meals, the same for the whole school
        score = 20 + level + slope * bands[band] + 1.5 * girl + groups[group] - 8 * meals
        frames.append(
            pl.DataFrame(
                {
                    "school": [f"school {school + 1:03d}"] * n,
                    "year": year,
                    "band": [f"band {b + 1}" for b in band],
                    "girl": girl,
                    "group": [f"group {g + 1}" for g in group],
                    "meals": [round(meals, 3)] * n,
                    "score": np.round(score + rng.normal(0, 8, n), 1),
                }
            )
        )
    return pl.concat(frames)


SYNTHETIC_TABLES: dict[str, Callable[[int], pl.DataFrame]] = {
    "landmines": make_landmines,
    "schools": make_schools,
}


def write_synthetic_table(name: str, path: Path, seed: int = 0) -> None:
    """Write one of the tables as a CSV file."""
    if name not in SYNTHETIC_TABLES:
        raise BadInput(f"there is no table '{name}' to make{suggest_name(name, SYNTHETIC_TABLES)}")
    if path.exists():
        raise BadInput(f"{path} exists already: give another name")
    check_new_folder(path.parent)
    with catch_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        SYNTHETIC_TABLES[name](seed).write_csv(path)
