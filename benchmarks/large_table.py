"""How long a large table of one's own takes to load, and how much memory: rows x 50 columns.

    python benchmarks/large_table.py --rows 1000000

The file is made once, in --folder; loading runs in a process of its own, so that the peak is that
of loading alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

COLUMNS, CLIENTS = 50, 1000


def make(path: Path, rows: int) -> None:
    """A table of numbers, a text, a date and some gaps."""
    rng = np.random.default_rng(0)
    columns: dict[str, object] = {
        f"x{k}": pl.Series(rng.normal(k, 1 + k, rows).round(4)) for k in range(COLUMNS - 2)
    }
    columns["x0"] = pl.Series(np.where(rng.random(rows) < 0.1, np.nan, 1.0), nan_to_null=True)
    columns["town"] = pl.Series(rng.integers(0, 40, rows)).cast(pl.String)
    columns["town"] = "t" + columns["town"]  # type: ignore[operator]
    columns["day"] = np.datetime64("2020-01-01") + rng.integers(0, 999, rows).astype("m8[D]")
    columns["client"] = pl.Series(rng.integers(0, CLIENTS, rows))
    columns["label"] = pl.Series(rng.integers(0, 5, rows))
    frame = pl.DataFrame(columns)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)


def load(path: Path) -> None:
    """Read, deal, cut and prepare; say what it took."""
    from coterie.data.pipeline import build_federation

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, work = time.perf_counter(), time.process_time()
    federation = build_federation(path)
    seconds, worked = time.perf_counter() - start, time.process_time() - work
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = federation.x.numel() * 4 / 1e9
    print(
        f"{path.suffix}: {path.stat().st_size / 1e9:.2f} GB, {len(federation.x):,} rows x "
        f"{federation.input_shape[0]} inputs ({store:.2f} GB) of {federation.clients:,} clients: "
        f"{seconds:.1f} s ({worked:.1f} s of all cores), "
        f"peak {peak / 1e6:.2f} GB ({before / 1e6:.2f} GB before)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--load", type=Path, help="only load this file")
    given = parser.parse_args()
    if given.load:
        load(given.load)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for suffix in (".csv", ".parquet"):
            path = folder / f"large-{given.rows}{suffix}"
            if not path.exists():
                make(path, given.rows)
            command = [sys.executable, "-W", "ignore", __file__, "--load", str(path)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
