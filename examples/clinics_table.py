"""Write a small table of one's own: made-up patients of twelve clinics, and an outcome.

Run it: python examples/clinics_table.py my.csv

Clinics differ as real ones do: some have more patients, devices are set differently, and in half of
the clinics another treatment turns round what a high marker means.
"""

import csv
import sys
from pathlib import Path

import numpy as np

COLUMNS = ["clinic", "age", "smoker", "pressure", "sugar", "weight", "marker", "outcome"]
NAMES = [
    "north",
    "south",
    "east",
    "west",
    "harbour",
    "hill",
    "lake",
    "forest",
    "bridge",
    "market",
    "castle",
    "station",
]


def patients(number: int, rng: np.random.Generator) -> list[list[str]]:
    """The rows of one clinic."""
    turned = -1.0 if number % 2 else 1.0
    offset = rng.normal(scale=5)  # of its blood-pressure device
    rows = []
    for _ in range(40 + 6 * number):
        age, marker, weight = rng.normal(60, 12), rng.normal(), rng.normal(75, 14)
        smoker = rng.random() < 0.3
        pressure = 120 + 0.4 * (age - 60) + 8 * rng.normal() + offset
        sugar = 95 + 0.5 * (weight - 75) + 10 * rng.normal()
        risk = 0.05 * (age - 60) + 0.8 * smoker + 0.03 * (sugar - 95) + 1.5 * turned * marker
        cells = [f"{age:.0f}", "yes" if smoker else "no", f"{pressure:.0f}", f"{sugar:.0f}"]
        if rng.random() < 0.03:
            cells[2] = ""  # some values are missing
        outcome = "ill" if risk + 0.3 * rng.normal() > 0.3 else "well"
        rows.append([NAMES[number], *cells, f"{weight:.0f}", f"{marker:.2f}", outcome])
    return rows


def write_table(path: Path, seed: int = 0) -> None:
    """All clinics' rows in one CSV file."""
    rng = np.random.default_rng(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(len(NAMES)):
            writer.writerows(patients(number, rng))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file to write, as in: python examples/clinics_table.py my.csv")
    write_table(Path(sys.argv[1]))
