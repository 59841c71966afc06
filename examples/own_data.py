"""Your own data and your own network: a table with a client column, any nn.Module.

Run it: python examples/own_data.py
"""

import csv
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

import coterie


def write_table(path: Path, sites: int = 6, rows: int = 60) -> None:
    """A small table: two measurements, a verdict, and the site they come from; each site draws its
    own line.
    """
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "length", "width", "verdict"])
        for site in range(sites):
            slope = rng.normal()
            for length, width in rng.normal(size=(rows, 2)):
                writer.writerow(
                    [
                        f"site-{site}",
                        f"{length:.3f}",
                        f"{width:.3f}",
                        "good" if width > slope * length else "bad",
                    ]
                )


def network() -> nn.Module:
    """Anything that takes the two measurements and gives two logits; BatchNorm trains rightly,
    client by client.
    """
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def main(folder: Path | None = None, rounds: int = 20) -> None:
    folder = folder or Path(tempfile.mkdtemp())
    write_table(folder / "sites.csv")
    words = {
        "dataset": str(folder / "sites.csv"),
        "client": "site",
        "label": "verdict",
        "rounds": rounds,
        "batch_size": 8,
    }
    result = coterie.compare(
        ["local", "fedavg", "ditto"], model=network, out=folder / "comparison", **words
    )
    for row in result.rows():
        print(
            f"{row.method:7} {100 * row.mean:.1f} % on average, worst site {100 * row.worst:.1f} %"
        )
    module = coterie.load_model(result.runs["ditto"][0].folder, "site-3", build=network)
    print(module)


if __name__ == "__main__":
    main()
