"""Partitions as flwr-datasets makes them: one Hugging Face data set per client.

In Python they are a FederatedDataset, a Partitioner or a list of data sets; on the disk a folder
of folders, each written by `save_to_disk` (as `flwr-datasets create` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from coterie.core.errors import BadInput
from coterie.data.read.file_rows import natural_key_of
from coterie.data.read.table_files import OpenedTable

SAVED_FILES = ("state.json", "dataset_dict.json")  # files that a saved data set has


class ClientPartition(NamedTuple):
    """The rows of one client."""

    client: str
    train: bool
    opened: OpenedTable


def is_saved(path: Path) -> bool:
    """Whether a folder is a data set that Hugging Face saved."""
    return any((path / mark).is_file() for mark in SAVED_FILES)


def find_saved_partitions(path: Path) -> list[Path]:
    """The folders in a folder that are a client's data set each, in natural order of names."""
    folders = (f for f in path.iterdir() if is_saved(f))
    return sorted(folders, key=lambda folder: natural_key_of(folder.name))


def is_partitions(data: object) -> bool:
    """Whether `data` is what flwr-datasets divides, or a list of Hugging Face data sets."""
    if isinstance(data, list | tuple):
        return bool(data) and all(_is_dataset(one) for one in data)
    return callable(getattr(data, "load_partition", None))


def _is_dataset(data: object) -> bool:
    return hasattr(data, "with_format") and hasattr(data, "features")


def partitions_of(data: Any) -> Iterator[ClientPartition]:
    """Every client's rows, part by part."""
    if isinstance(data, list | tuple):
        for k, one in enumerate(data):
            yield ClientPartition(str(k), True, _open_dataset(one))
        return
    parts = getattr(data, "partitioners", None)
    if parts is None:
        yield from _read_partitioner(data, data.load_partition, True)
        return
    for part in parts:
        first = data.load_partition(0, part)  # only now does the partitioner have its rows
        if not _is_dataset(first):
            raise BadInput(
                f"part '{part}' has no partitions of rows: give one partitioner per part"
            )

        def load(k: int, part: str = part) -> Any:
            return data.load_partition(k, part)

        yield from _read_partitioner(
            data.partitioners[part], load, part == "train" or "train" not in parts
        )


def _read_partitioner(partitioner: Any, load: Any, train: bool) -> Iterator[ClientPartition]:
    """The rows that one partitioner gives every client; natural ids are the clients' names."""
    for k in range(partitioner.num_partitions):
        rows = _open_dataset(load(k))
        names = getattr(partitioner, "partition_id_to_natural_id", None) or {}  # known by now
        yield ClientPartition(str(names.get(k, k)), train, rows)


def _open_dataset(data: Any) -> OpenedTable:
    """A Hugging Face data set as a frame, with the class names that it states."""
    frame = pl.DataFrame(pl.from_arrow(data.with_format("arrow")[:]))

    def names(column: str) -> list[str] | None:
        stated = getattr(data.features.get(column), "names", None)
        return None if stated is None else list(stated)

    return OpenedTable(frame, names, [])
