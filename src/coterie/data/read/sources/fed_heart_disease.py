"""Heart disease in four hospitals, as FLamby has it; the files are in the package (NOTICE.md)."""

from pathlib import Path

import numpy as np

from coterie.data.dataset import Dataset, Source

FOLDER = Path(__file__).with_name("fed_heart")
HOSPITALS = {
    "Cleveland": "cleveland",
    "Hungarian": "hungarian",
    "Switzerland": "switzerland",
    "Long Beach V.A.": "va",
}
DROPPED = (10, 11, 12)  # columns that most hospitals left empty
NAMES_AS_NUMBERS = (2, 6)  # kind of chest pain, resting electrocardiogram


def fed_heart(folder: Path) -> Dataset:
    """740 patients of four hospitals (Janosi et al., UCI): 13 inputs, and whether they are ill."""
    hospitals = [read_hospital(FOLDER / f"processed.{name}.data") for name in HOSPITALS.values()]
    rows = np.concatenate(hospitals)
    y = (rows[:, -1] > 0).astype(np.int64)
    users = np.repeat(np.arange(len(hospitals)), [len(own) for own in hospitals])
    parts = np.concatenate([split_hospital(y[users == k]) for k in range(len(hospitals))])
    return Dataset(
        name="fed-heart",
        x=encode(rows[:, :-1]),
        y=y,
        classes=2,
        train=parts == 0,
        users=users,
        parts=parts,
        clients=tuple(HOSPITALS),
    )


def read_hospital(path: Path) -> np.ndarray:
    """The complete rows of one file, without the columns that are dropped."""
    lines = [line.split(",") for line in path.read_text(encoding="ascii").split()]
    kept = np.delete(np.array(lines), DROPPED, axis=1)
    return np.asarray(kept[(kept != "?").all(1)].astype(np.float64))


def encode(rows: np.ndarray) -> np.ndarray:
    """Inputs: numbers as they are, then every level but the first of what is no number."""
    numbers = np.delete(rows, NAMES_AS_NUMBERS, axis=1)
    levels = [rows[:, [k]] == np.unique(rows[:, k])[1:] for k in NAMES_AS_NUMBERS]
    return np.concatenate([numbers, *levels], axis=1).astype(np.float32)


def split_hospital(y: np.ndarray) -> np.ndarray:
    """[n] 0 for FLamby's training rows, 2 for its test rows."""
    from sklearn.model_selection import train_test_split

    even = np.bincount(y, minlength=2).min() > 2
    _, tested = train_test_split(
        np.arange(len(y)),
        train_size=0.66,
        test_size=1 - 0.66,
        random_state=43,
        stratify=y if even else None,
    )
    parts = np.zeros(len(y), np.int64)
    parts[tested] = 2
    return parts


FED_HEART = Source(fed_heart, natural=True, network="logistic", scale="client")
