"""Write a table as it comes out of other programs: patients.csv, and later.csv with new rows.

Run it: python examples/messy_table.py

The patients of clinics_table.py, with a number per patient, units in cells, two spellings of a
missing value, outcomes that nobody has entered, and rows that were exported twice.
"""

import csv
from pathlib import Path

import numpy as np
from clinics_table import COLUMNS, NAMES, patients

LATER = NAMES.index("station")  # whose new rows later.csv has


def mess_up(row: list[str], rng: np.random.Generator) -> list[str]:
    """One patient as another program writes it."""
    clinic, age, smoker, pressure, sugar, weight, marker, outcome = row
    weight = "n/a" if rng.random() < 0.05 else f"{weight} kg"
    pressure = pressure or "-"
    outcome = "" if rng.random() < 0.02 else outcome
    return [clinic, age, smoker, pressure, sugar, weight, marker, outcome]


def write_rows(path: Path, rows: list[list[str]]) -> None:
    """Rows with a number each, separated by semicolons; every fortieth is there twice."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=";", lineterminator="\n")
        writer.writerow(["patient", *COLUMNS])
        for k, row in enumerate(rows):
            writer.writerows([[f"P{k:05}", *row]] * (2 if k % 40 == 0 else 1))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    write_rows(
        Path("patients.csv"),
        [mess_up(row, rng) for number in range(len(NAMES)) for row in patients(number, rng)],
    )
    write_rows(Path("later.csv"), [row for row in patients(LATER, rng) if all(row)])
