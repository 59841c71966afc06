"""Columns scaled by all training rows, or by each client's own: `--scale standard` and `client`.

Three data sets: UCI HAR, the schools of `examples/school_table.py` (their exam score), and the same
schools where each measures its numbers in a unit of its own, as sites with other devices do.

Run it: python benchmarks/client_scale.py [uci-har] [schools] [units]
"""

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

import coterie
from coterie.data.messages import DataWarning

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from school_table import COLUMNS, school_table  # it lies in another folder

METHODS, SCALES, ROUNDS = ("local", "fedavg", "ditto"), ("standard", "client"), 20
NUMBERS = ("hours", "earlier", "distance")
WORDS: dict[str, dict[str, Any]] = {
    "uci-har": {"dataset": "uci-har"},
    "schools": {"client": "school", "label": "score", "features": COLUMNS},
    "units": {"client": "school", "label": "score", "features": COLUMNS},
}


def in_own_units(table: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
    """The table with every school's numbers in a unit and from a zero of its own."""
    rng = np.random.default_rng(seed)
    schools = table["school"].unique(maintain_order=True)
    for column in NUMBERS:
        factor = dict(zip(schools, np.exp(rng.normal(0, 1, len(schools))), strict=True))
        shift = dict(zip(schools, rng.normal(0, 3, len(schools)), strict=True))
        unit = pl.col("school").replace_strict(factor, return_dtype=pl.Float64)
        zero = pl.col("school").replace_strict(shift, return_dtype=pl.Float64)
        table = table.with_columns(pl.col(column) * unit + zero * unit)
    return table


def reached(name: str, folder: Path) -> dict[tuple[str, str], float]:
    """{(method, scale): mean over clients of what is judged, on test rows}."""
    settings = dict(WORDS[name])
    if name != "uci-har":
        table = school_table() if name == "schools" else in_own_units(school_table())
        settings["dataset"] = str(folder / f"{name}.csv")
        table.write_csv(settings["dataset"])
    found = {}
    for scale in SCALES:
        for method in METHODS:
            out = folder / f"{name}-{scale}-{method}"
            run = coterie.run(
                method, out=out, scale=scale, rounds=ROUNDS, watch=lambda report: None, **settings
            )
            found[method, scale] = float(np.nanmean(run.client_values("test")))
    return found


def main() -> None:
    warnings.simplefilter("ignore", DataWarning)
    grid = Table("data", "method", *SCALES)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or WORDS:
            found = reached(name, Path(folder))
            for method in METHODS:
                grid.add_row(name, method, *(f"{found[method, s]:.4g}" for s in SCALES))
    Console().print(grid)


if __name__ == "__main__":
    main()
