"""Tables as hospitals write them: texts, dates, blanks, a rare word, and a label of any name."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

RARE = "Zaphodism"  # a diagnosis that one patient of one site has
HEAD = ("age", "sex", "smoker", "visit", "ward", "outcome", "note")


def write_clinics(folder: Path, names: Sequence[str], rows: int = 90) -> None:
    """One file per site; the columns in another order at the last, which has one more."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(4)
    for k, name in enumerate(names):
        table = [_draw_row(rng, k) for _ in range(rows + 10 * k)]
        if k == 1:
            table[3]["ward"] = RARE
        head = HEAD if k < len(names) - 1 else tuple(reversed(HEAD))
        _write(folder / f"{name}.csv", head, table)


def write_public(path: Path, rows: int = 40) -> None:
    """Rows that everyone may see: blanks and a ward of their own, and no label."""
    rng = np.random.default_rng(9)
    table = [_draw_row(rng, 1) | ({"ward": "North"} if i < 3 else {}) for i in range(rows)]
    _write(path, [name for name in HEAD if name != "outcome"], table)


def _draw_row(rng: np.random.Generator, site: int) -> dict[str, str]:
    age = rng.normal(50 + 5 * site, 12)
    ill = rng.random() < 1 / (1 + np.exp(-(age - 55) / 6))
    wards = ("Surgery", "Medicine", "Eye clinic")[: 2 + (site > 0)]
    day = np.datetime64("2023-01-01") + int(rng.integers(0, 600))
    return {
        "age": "" if rng.random() < 0.2 else f"{age:.1f}",
        "sex": "" if rng.random() < 0.03 else "FM"[int(rng.integers(2))],
        "smoker": str(bool(rng.random() < 0.3 + 0.2 * ill)).lower(),
        "visit": day.astype(object).strftime("%d/%m/%Y"),
        "ward": str(rng.choice(wards)),
        "outcome": "ill" if ill else "well",
        "note": "",
    }


def _write(path: Path, head: Sequence[str], table: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, head, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(table)
