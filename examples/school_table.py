"""A table as schools have it, for every task: 60 schools of different size, mixed columns, gaps.

Write it: python examples/school_table.py schools.csv

It is made of numbers drawn from a fixed seed, so everybody gets the same file. A pupil's exam score
depends on hours of study, earlier marks, the way to school and the school itself: what an hour is
worth differs from school to school. The other labels hang on the same ability: `absences` is a
count, `grade` has the order 1 to 5, `passed` is yes or no, `dropout` is rare (3 %), `maths_help`
and `reading_help` may both be there.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

SCHOOLS = 60
COLUMNS = "age,gender,hours,earlier,distance,parents,enrolled"  # what a model may know
LABELS = ("score", "absences", "grade", "passed", "dropout", "maths_help", "reading_help")


def _gaps(values: np.ndarray, share: float, rng: np.random.Generator) -> pl.Series:
    """A column of which some cells were never noted."""
    return pl.Series(np.where(rng.random(len(values)) < share, np.nan, values), nan_to_null=True)


def school_table(schools: int = SCHOOLS, seed: int = 0) -> pl.DataFrame:
    """One row per pupil."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(40, 161, schools)
    school = np.repeat(np.arange(schools), sizes)
    n = len(school)
    level, worth = rng.normal(0, 4, schools)[school], rng.normal(4, 2.5, schools)[school]
    hours, earlier = rng.gamma(3, 1.5, n), rng.normal(0, 1, n)
    distance, age = rng.exponential(4, n), rng.integers(14, 19, n)
    parents = rng.choice(["school", "college", "university"], n, p=[0.5, 0.3, 0.2])
    gender = rng.choice(["f", "m"], n)
    degree = np.select([parents == "college", parents == "university"], [2.0, 4.0])
    score = 55 + level + worth * (hours - 4.5) + 6 * earlier - 0.5 * distance + degree
    score = score + rng.normal(0, 5, n)
    ability = (score - score.mean()) / score.std()

    def drawn(logit: np.ndarray) -> np.ndarray:
        return rng.random(n) < 1 / (1 + np.exp(-logit))

    return pl.DataFrame(
        {
            "school": [f"school-{k:02d}" for k in school],
            "age": age,
            "gender": gender,
            "hours": _gaps(hours.round(1), 0.1, rng),
            "earlier": _gaps(earlier.round(2), 0.15, rng),
            "distance": distance.round(1),
            "parents": pl.Series(np.where(rng.random(n) < 0.08, "", parents)).replace("", None),
            "enrolled": np.datetime64("2023-08-01") + rng.integers(0, 60, n).astype("m8[D]"),
            "score": score.clip(0, 100).round(1),
            "absences": rng.poisson(np.exp(1.2 - 0.5 * ability + 0.05 * distance)),
            "grade": 1 + np.searchsorted([-1.2, -0.4, 0.4, 1.2], ability + rng.normal(0, 0.4, n)),
            "passed": np.where(drawn(1 + 2 * ability), "yes", "no"),
            "dropout": drawn(-4.8 - 2 * ability).astype(int),
            "maths_help": drawn(-1 - 1.5 * ability).astype(int),
            "reading_help": drawn(-1 - ability + (gender == "m")).astype(int),
        }
    )


def main(path: str = "schools.csv") -> None:
    table = school_table()
    table.write_csv(Path(path))
    print(f"{path}: {table.height:,} pupils of {SCHOOLS} schools")


if __name__ == "__main__":
    main(*sys.argv[1:])
